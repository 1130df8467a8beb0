"""The Python door: every public name is there, arguments are checked by name and value, and no
message speaks of flags. What a notebook shows says what happened, and escapes what was named."""

import inspect
import json
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import torch
from lib.configs import changed, small

import fedspend
from fedspend.basics.door import command_line, public
from fedspend.errors import InvalidInput, Refused

TINY = small()
NAMES = [
    *("plan", "verify", "train", "compare", "audit", "tune", "predict", "load_model"),
    *("make_report", "Ledger", "Result", "Plan", "InvalidInput", "Refused"),
    *("publish", "verify_run", "verify_publication", "register"),
    *("explain", "what_if", "glossary", "data_sets", "get_data", "check_data", "new_keys"),
]


@pytest.fixture(scope="module")
def plan():
    return fedspend.plan([5.0, 5.0, 10.0], delta=1e-2, rounds=2, rate=1.0, accountant="rdp")


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(3)
    return [(generator.normal(size=(12, 4)), generator.integers(0, 2, 12)) for _ in range(3)]


@pytest.fixture
def asked(plan, rows):
    return {
        "clients": rows,
        "model": torch.nn.Linear(4, 2),
        "plan": plan,
        "test": rows[0],
        "lr": 0.1,
        "batch_size": 4,
        "local_steps": 2,
        "randomness": "seeded",
        "seed": 1,
    }


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return fedspend.train(TINY, output=tmp_path_factory.mktemp("runs") / "kept")


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_with_words_that_explain_it(name):
    found = getattr(fedspend, name)
    assert name in dir(fedspend)
    assert len(inspect.getdoc(found)) > 40
    assert not isinstance(found, types.ModuleType)


@pytest.mark.parametrize("name", ["design", "records", "report", "accounting"])
def test_packages_stay_packages(name):
    assert isinstance(getattr(fedspend, name), types.ModuleType)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if inspect.isfunction(getattr(fedspend, name))]
)
def test_every_argument_is_explained(name):
    function = getattr(fedspend, name)
    said = inspect.getdoc(function)
    arguments = [one for one in inspect.signature(function).parameters if one != "options"]
    assert [one for one in arguments if one not in said] == []
    assert "Returns:" in said
    assert "Raises:" in said or not arguments


def test_importing_fedspend_loads_neither_numpy_nor_torch():
    code = "import sys, fedspend, fedspend.cli.main; print([*sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "fedspend.cli.main" in loaded
    assert "'numpy'" not in loaded
    assert "'torch'" not in loaded


def test_a_misspelt_name_of_ours_is_an_attribute_error_with_the_nearest():
    with pytest.raises(AttributeError, match="did you mean 'train'"):
        fedspend.trian  # noqa: B018


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("lr", -1, "lr must be a positive number"),
        ("lr", float("nan"), "lr must be a positive number"),
        ("lr", "fast", "lr must be a positive number"),
        ("batch_size", 0, "batch_size must be a whole number of at least 1, got 0"),
        ("batch_size", 2.5, "batch_size must be a whole number"),
        ("batch_size", True, "batch_size must be a whole number"),
        ("local_steps", -1, "local_steps must be a whole number of at least 1"),
        ("clipping", "bogus", "unknown clipping 'bogus'; choose one of flat, per-layer"),
        ("clipping", "flatt", "did you mean 'flat'"),
        ("server_lr", 0, "server_lr must be a positive number"),
        ("server_momentum", 2, "server_momentum must be"),
        ("tail_average", 1.5, "tail_average must be a whole number"),
        ("bits", 3, "bits must be"),
        ("bits", 64, "bits must be from"),
        ("seed", -1, "seed must be a whole number of at least 0"),
        ("workers", 0, "workers must be"),
        ("lr_end", 2, "lr_end must be a number from 0 to 1"),
        ("randomness", "seed", "did you mean 'seeded'"),
        ("engine", "locl", "did you mean 'local'"),
        ("lr_schedul", "cosine", "did you mean 'lr_schedule'"),
        ("outptu", "x", "did you mean 'output'"),
        ("columms", ["a"], "did you mean 'columns'"),
        ("output", 5, "output must be a path, got 5"),
        ("on_round", 3, "on_round must be a function"),
        ("progress", "yes", "progress must be"),
        ("overrides", ["train.lr=1"], "overrides is for a config"),
        ("replan", True, "needs resume=True"),
        ("moved", True, "needs resume=True"),
        ("resume", True, "name it with output="),
        ("plan", "nowhere.json", "nowhere.json: cannot read the plan"),
        ("plan", 3, "plans of clients"),
    ],
)
def test_train_refuses_what_a_config_would_refuse(asked, option, value, says):
    with pytest.raises(InvalidInput) as refused:
        fedspend.train(**(asked | {option: value}))
    assert says in str(refused.value)
    assert "--" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("missing", ["lr", "batch_size", "model", "plan", "test"])
def test_train_says_what_is_missing(asked, missing):
    del asked[missing]
    with pytest.raises(InvalidInput, match=f"needs.*{missing}="):
        fedspend.train(**asked)


def test_numbers_of_numpy_are_numbers(asked):
    given = asked | {"lr": np.float32(0.1), "batch_size": np.int64(4), "seed": np.int32(1)}
    assert len(fedspend.train(**given).metrics) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"polcy": "uniform"}, "unknown argument of plan: 'polcy'; did you mean 'policy'?"),
        ({"policy": "optimul"}, "did you mean 'optimal'?"),
        ({"accountant": "rpd"}, "did you mean 'rdp'?"),
        ({"bits": 1}, "bits must be from"),
        ({"past": 3}, "past must be what Ledger.past gives"),
        ({"options": 3}, "options must be a dict"),
    ],
)
def test_plan_names_the_nearest(arguments, says):
    with pytest.raises(InvalidInput) as refused:
        fedspend.plan(**{"epsilons": [1.0], "delta": 1e-2, "rounds": 2, "rate": 1.0} | arguments)
    assert says in str(refused.value)


def test_what_is_missing_is_named():
    with pytest.raises(InvalidInput, match="plan also needs rounds= and rate="):
        fedspend.plan([1.0], delta=1e-2)
    with pytest.raises(InvalidInput, match="verify also needs plan="):
        fedspend.verify()


@pytest.mark.parametrize(
    "call",
    [
        lambda: fedspend.train(TINY, overrides=["train.lr=-1"]),
        lambda: fedspend.train(TINY, overrides="train.lr=1"),
        lambda: fedspend.train(changed(TINY, privacy={})),
        lambda: fedspend.train(changed(TINY, train={})),
        lambda: fedspend.train(TINY, replan=True),
        lambda: fedspend.tune(TINY, ["train.lrr=1,2"]),
        lambda: fedspend.tune(TINY, []),
        lambda: fedspend.tune(TINY, ["train.lr=1"], private=True, seeds=3),
        lambda: fedspend.compare(TINY, ["fedavg"], vary=["train.seed=1,2"]),
        lambda: fedspend.compare(TINY, ["fedavg"], vary=["shape.luss=1,2"]),
        lambda: fedspend.compare(TINY, ["fedavg"], seeds=0),
        lambda: fedspend.audit(TINY, overrides=["data.name=nothing"]),
        lambda: fedspend.audit(TINY, confidence=2),
        lambda: fedspend.make_report("nowhere"),
        lambda: fedspend.make_report(3),
        lambda: fedspend.verify_run("nowhere"),
        lambda: fedspend.verify(3),
        lambda: fedspend.verify("nowhere.json"),
        lambda: fedspend.predict("nowhere", "x.csv"),
        lambda: fedspend.Ledger.open("nowhere.db"),
    ],
)
def test_no_message_speaks_of_flags(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as refused:
        call()
    said = str(refused.value).partition("fedspend ")[0]  # what follows is a command for a shell
    assert "--" not in said
    assert said.strip()
    assert [*tmp_path.iterdir()] == []


def test_the_command_line_hears_of_its_own_flags():
    @public
    def broken() -> None:
        raise InvalidInput("drop --replan, or --set train.lr=1: wrong")

    with pytest.raises(InvalidInput, match="drop replan=True"):
        broken()
    with command_line(), pytest.raises(InvalidInput, match="drop --replan, or --set train"):
        broken()


# --- what is shown --------------------------------------------------------------------------------


@pytest.mark.full
def test_reprs_inform(plan, result):
    assert repr(plan) == "<Plan: 3 clients, 2 rounds, optimal, budgets 5 to 10>"
    assert repr(fedspend.verify(plan)).startswith("<Verification: ok, ")
    assert "simulation of 4 rounds: accuracy" in repr(result)
    with fedspend.Ledger.open(result.ledger, project=result.project) as ledger:
        assert repr(ledger).endswith("ledger.db, a simulation's: 6 clients, 1 run>")
        assert "<td>12</td><td>0</td>" in ledger._repr_html_()


def test_a_plan_that_fails_says_so_in_its_repr(plan):
    broken = plan.replace(noise_multiplier=plan.noise_multiplier * 0.5)
    assert repr(fedspend.verify(broken)).startswith("<Verification: FAILED")


def test_tables_of_a_notebook_have_the_numbers(plan, result):
    assert "<td>5</td><td>2</td>" in plan._repr_html_()
    assert plan._repr_html_().count("<tr>") == 3
    assert "passed" in fedspend.verify(plan)._repr_html_()
    assert result._repr_html_().count("<tr>") == 5


def test_names_in_tables_are_no_markup():
    named = fedspend.plan({"<b>x": 2.0}, delta=1e-2, rounds=1, rate=1.0, accountant="rdp")
    assert "<b>x" not in named._repr_html_()


@pytest.mark.full
def test_plots_show_themselves_and_are_saved(plan, result, tmp_path):
    for one in (plan, result):
        assert one.plot()._repr_png_().startswith(b"\x89PNG")
    assert plan.plot(plan).save(tmp_path / "two.svg").read_text().startswith("<?xml")
    with pytest.raises(InvalidInput, match="must end in"):
        plan.plot().save(tmp_path / "plan.gif")


def test_metrics_are_lines_and_a_frame(result):
    assert result.metrics[-1]["accuracy"] == result.accuracy
    assert result.metrics["accuracy"] == [line["accuracy"] for line in result.metrics]
    frame = result.metrics.frame()
    assert len(frame) == 4
    assert frame["epsilon 12"].is_monotonic_increasing
    assert result.metrics.iloc[-1]["accuracy"] == result.accuracy
    with pytest.raises(InvalidInput, match="did you mean 'accuracy'"):
        result.metrics["acuracy"]
    with pytest.raises(AttributeError):
        result.metrics.no_such_thing  # noqa: B018


def test_per_client_measures_each_client_on_its_own_rows(result):
    found = result.per_client
    assert found["rows"].sum() == 240 * 0.8 or found["rows"].sum() > 100
    assert list(found["budget"]) == sorted(found["budget"])
    assert found["accuracy"].between(0, 1).all()
    assert found["accuracy"].nunique() > 1


def test_per_client_is_what_one_would_measure_by_hand(asked, rows):
    found = fedspend.train(**asked)
    with torch.no_grad():
        scored = found.model(torch.tensor(rows[1][0], dtype=torch.float32))
    right = float((scored.argmax(1).numpy() == rows[1][1]).mean())
    assert found.per_client["accuracy"][1] == pytest.approx(right)
    assert found.per_client["client"][1] == "1"


def test_a_client_without_rows_has_a_line(asked, rows):
    found = fedspend.train(**(asked | {"clients": {"0": rows[0], "2": rows[2]}})).per_client
    assert found["rows"].tolist() == [12, 0, 12]
    assert np.isnan(found["loss"][1])


def test_per_client_is_refused_for_real_runs(asked, rows, tmp_path):
    named = {str(n): pair for n, pair in enumerate(rows)}
    real = asked | {"clients": named, "randomness": "os", "ledger": tmp_path / "a.db"}
    found = fedspend.train(**real, project="p")
    with pytest.raises(Refused, match="protected by nothing"):
        found.per_client  # noqa: B018
    assert "real run" in repr(found)
    assert "cohort" not in found._repr_html_()


def test_a_report_of_a_result(result, tmp_path):
    page = fedspend.make_report(result, tmp_path / "page.html")
    assert "12" in page.read_text()
    with pytest.raises(InvalidInput, match="listed twice"):
        fedspend.make_report([result, result.folder], tmp_path / "both.html")
    with pytest.raises(InvalidInput, match=r"must end in \.html"):
        fedspend.make_report(result, tmp_path / "page.txt")


def test_a_run_that_was_not_kept_has_no_report(asked):
    with pytest.raises(InvalidInput, match="train with output="):
        fedspend.make_report(fedspend.train(**asked))


def test_a_bar_without_a_terminal_is_lines(asked, capsys):
    fedspend.train(**asked, progress=True)
    assert capsys.readouterr().err.startswith("round 1/2  accuracy")
    fedspend.train(**asked)
    assert capsys.readouterr().err == ""


def test_a_notebook_gets_a_bar_that_moves(asked, monkeypatch):
    shown = []

    class Handle:
        def update(self, html):
            shown.append(html)

    def display(html, **_):
        shown.append(html)
        return Handle()

    notebook = types.SimpleNamespace(kernel=object())
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: notebook
    pictures = types.ModuleType("IPython.display")
    pictures.display, pictures.HTML = display, str
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", pictures)
    fedspend.train(**asked)
    assert len(shown) == 3
    assert 'max="2" value="2"' in shown[-1]


PLAN = object()  # the plan of these tests

# --- words, data and keys: the same answers as the command line -----------------------------------


@pytest.fixture(scope="module")
def plan_file(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan.save(path)
    return path


@pytest.mark.full
def test_an_explanation_has_the_numbers_of_the_command_line(plan, plan_file, capsys, tmp_path):
    from fedspend.cli.main import main

    found = fedspend.explain(plan, client="2")
    assert main(["explain", str(plan_file), "--client", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"plan": str(plan_file)} | json.loads(json.dumps(found.numbers()))
    assert repr(found).startswith("Best membership test; client 2\n  client 2, epsilon 10")
    assert "<table>" in found._repr_html_()
    assert "plan (promised)" in found.table().markdown()
    found.plot().save(tmp_path / "curve.svg")
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    groups = fedspend.explain(plan_file)
    assert [one.label for one in groups.seen] == ["budget 5: 2 clients", "budget 10: 1 client"]
    assert len(fedspend.explain(plan, group=10.0).seen) == 1
    worst = fedspend.explain(10, delta=1e-5)
    assert "by at most 22,027, except with a chance of 1 in 100,000" in repr(worst)
    assert worst.numbers()["epsilon"] == 10


def test_what_if_is_what_the_command_line_says(plan, plan_file, capsys):
    from fedspend.cli.main import main

    found = fedspend.what_if(plan, client="0", leaves=1)
    assert main(["explain", str(plan_file), "--client", "0", "--leaves", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"plan": str(plan_file)} | found.numbers()
    assert repr(found).startswith("<client 0 leaves after round 1 of 2: spent ")
    assert "given back" in found._repr_html_()
    assert 0 < found.spent < found.if_it_stays <= found.budget


def test_a_glossary_is_a_dict_that_shows_itself():
    whole = fedspend.glossary()
    assert len(whole) > 40
    assert repr(fedspend.glossary("CLIP")) == f"clip: {whole['clip']}"
    assert "<th>term</th>" in whole._repr_html_()


def test_data_and_keys(tmp_path, capsys):
    from fedspend.cli.main import main

    assert main(["data", "list", "--json"]) == 0
    listed = fedspend.data_sets()
    assert json.loads(capsys.readouterr().out) == listed.rows()
    assert "digits" in repr(listed)
    assert len(listed.frame()) == len(listed)
    path = tmp_path / "patients.csv"
    path.write_text("age,blood\n41.75,<b>\n,0\n")
    found = fedspend.check_data(path)
    assert [one.missing for one in found.columns] == [1, 0]
    assert repr(found).startswith("<private, from rows: ")
    for shown in (found._repr_html_(), repr(found)):
        assert "41.75" not in shown  # 41 may be in the path
        assert "<b>" not in shown
    pair = fedspend.new_keys(tmp_path / "keys")
    assert pair.private.stat().st_mode & 0o077 == 0
    assert pair.fingerprint in repr(pair)
    with pytest.raises(InvalidInput, match="not overwritten"):
        fedspend.new_keys(tmp_path / "keys")


@pytest.mark.parametrize(
    ("name", "given", "named", "says"),
    [
        ("explain", (10,), {}, "add delta="),
        ("explain", (10,), {"delta": 2}, "delta must lie strictly between 0 and 1"),
        ("explain", (10,), {"delta": 1e-5, "client": "a"}, "client is for plans"),
        ("explain", (PLAN,), {"delta": 1e-5}, "a plan has its own delta"),
        ("explain", (PLAN,), {"client": "0", "group": 5}, "were both given"),
        ("explain", (PLAN,), {"colluders": 0.5}, "must be a whole number, got 0.5"),
        ("explain", (PLAN,), {"colluders": 0}, "colluders must be at least 1"),
        ("explain", (PLAN,), {"record": "0"}, "protects clients"),
        ("explain", (PLAN,), {"observr": "x"}, "did you mean 'observer'"),
        ("explain", (None,), {}, "give an epsilon, a plan or the file of one; got None"),
        ("explain", ([1.0],), {}, "give an epsilon, a plan or the file of one"),
        ("explain", (10**400,), {"delta": 1e-5}, "give an epsilon"),
        ("what_if", (3,), {"client": "0", "leaves": 1}, "plan must be a plan or the file of one"),
        ("load_model", (3,), {}, "run must be a path, got 3"),
        ("predict", (3, "x.csv"), {}, "run must be a path, got 3"),
        ("publish", (3,), {}, "run must be a path, got 3"),
        ("get_data", ("mnist",), {"url": 3}, "url must be an address, got 3"),
        ("train", ("nowhere.toml",), {}, "nowhere.toml cannot be read: No such file"),
        ("check_data", ("nowhere.toml",), {}, "nowhere.toml cannot be read: No such file"),
        ("what_if", (PLAN,), {"leaves": 1}, "say who leaves"),
        ("what_if", (PLAN,), {"client": "0"}, "also needs leaves="),
        ("what_if", (PLAN,), {"client": "0", "leaves": True}, "leaves must be a whole"),
        ("what_if", (PLAN,), {"client": "0", "leaves": 9}, "leaves must be a round from"),
        ("what_if", (PLAN,), {"client": "0", "leaves": 1, "project": "p"}, "ledger="),
        ("glossary", (3,), {}, "term must be a word, got 3"),
        ("glossary", ("cilp",), {}, "did you mean 'clip'"),
        ("check_data", (3,), {}, "data must be a path, got 3"),
        ("get_data", ("digits",), {}, "needs no download"),
        ("new_keys", (3,), {}, "folder must be a path, got 3"),
    ],
)
def test_bad_questions_are_one_line(plan, name, given, named, says):
    with pytest.raises(InvalidInput) as refused:
        getattr(fedspend, name)(*(plan if one is PLAN else one for one in given), **named)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "--" not in str(refused.value).partition("fedspend ")[0]


def test_checks_of_a_run_and_a_publication_show_themselves(result):
    found = fedspend.verify_run(result.folder)
    assert "passed" in repr(found)
    assert "<caption>run " in found._repr_html_()
    found.checks[0] = type(found.checks[0])("run", False, "it is <odd>")
    assert "failed: run: it is <odd>" in repr(found)
    assert "<odd>" not in found._repr_html_()


@pytest.mark.full
def test_a_ledger_of_100000_accounts_shows_the_first_at_once(tmp_path, monkeypatch):
    from fedspend.ledger import book

    computed = []

    def counting(state, unit, **how):
        computed.append(len(state.accounts[unit]))
        return balances(state, unit, **how)

    balances = book.balances
    monkeypatch.setattr(book, "balances", counting)
    budgets = np.tile([2.0, 5.0, 10.0, 20.0], 25_000)
    names = [f"c{n}" for n in range(budgets.size)]
    plan = fedspend.plan(
        dict(zip(names, budgets.tolist(), strict=True)),
        delta=1e-7,
        rounds=4,
        rate=0.5,
        accountant="rdp",
    )
    with fedspend.Ledger.create(tmp_path / "l.db", simulation=True) as ledger:
        ledger.admit("run", plan.proposal(), simulation=True)
        ledger.reserve("run", 0)
        begun = time.process_time()
        shown = ledger._repr_html_()
        assert time.process_time() - begun < 0.5
        assert computed == [12]
        assert "The first 12 of 100,000 clients." in shown
        every = ledger.balances()
        few = balances(ledger.state.of_first("client", 12), "client")
    for column in ("names", "budget", "delta", "spent", "reserved", "remaining", "total"):
        assert list(getattr(few, column)) == list(getattr(every, column)[:12]), column
    assert f"<td>c3</td><td>20</td><td>{every.spent[3]:.4g}</td>" in shown


def test_the_first_accounts_of_a_ledger_with_runs_on_others(tmp_path):
    """A run in which none of the first takes part, and one with some of them."""
    from fedspend.ledger.spending import balances

    def plan(names):
        budgets = {name: 1.0 + n / 4 for n, name in enumerate(names)}
        return fedspend.plan(budgets, delta=1e-3, rounds=3, rate=0.5, accountant="rdp")

    names = [f"c{n}" for n in range(6)]
    with fedspend.Ledger.create(tmp_path / "l.db", simulation=True) as ledger:
        ledger.register(names, 9.0, delta=1e-3)
        for run, members in (("late", names[3:]), ("some", names[1:5])):
            ledger.admit(run, plan(members).proposal(), simulation=True)
            ledger.reserve(run, 0)
        ledger.close_run("late", reason="test")
        ledger.withdraw([names[1]], reason="test")
        every, few = ledger.balances(), balances(ledger.state.of_first("client", 2), "client")
    for column in ("spent", "reserved", "remaining", "total", "withdrawn"):
        assert list(getattr(few, column)) == list(getattr(every, column)[:2]), column


# --- places where nothing can be written ---


def test_what_is_saved_where_no_file_can_be_is_one_line(tmp_path):
    """Whatever writes a file: a plan, an export of a ledger, a report, predictions."""
    from fedspend.basics.files import write_whole

    plan = fedspend.plan([2.0, 8.0], delta=1e-3, rounds=2, rate=0.5, accountant="rdp")
    (tmp_path / "file").write_text("kept")
    for name, why in (
        ("missing/dir/plan.json", r"plan.json': there is no directory '.*missing/dir'; create it"),
        ("file/plan.json", "there is no directory '.*file'"),
        ("", "is a directory; name a file in it"),
        ("a" * 250, "File name too long; name another"),
        ("a\0b", "embedded null .*; name another"),  # a byte, or a character: by version of Python
    ):
        for save in (plan.save, lambda path: write_whole(path, b"")):
            with pytest.raises(InvalidInput, match=why):
                save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_folders_that_cannot_be_made_are_one_line(tmp_path):
    from fedspend.basics.files import make_folder

    (tmp_path / "file").write_text("kept")
    for make in (make_folder, fedspend.new_keys):
        with pytest.raises(InvalidInput, match=r"cannot make the folder '.*file/x': Not a dir"):
            make(tmp_path / "file" / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
