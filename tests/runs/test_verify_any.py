"""`fedspend.verify` takes what `fedspend verify` takes, and `fedspend.plan` what `fedspend plan`
takes, with the same findings, plans and messages.
"""

import json

import pytest
from lib.configs import small, write_toml

import fedspend
from fedspend.cli.main import main
from fedspend.errors import InvalidInput, Refused

TINY, RECORDS = small(), small("record", train__tail_average=2, train__server_momentum=0.5)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A run directory, its publication and its plan."""
    folder = tmp_path_factory.mktemp("verify")
    fedspend.train(TINY, output=folder / "run", progress=False)
    fedspend.make_report(folder / "run", output=folder / "run" / "report.html")
    fedspend.publish(folder / "run", output=folder / "public")
    return {
        "RunVerification": folder / "run",
        "Checked": folder / "public",
        "Verification": folder / "run" / "plan.json",
    }


@pytest.mark.full(but=["Checked"])
@pytest.mark.parametrize("kind", ["RunVerification", "Checked", "Verification"])
def test_python_finds_what_the_command_finds(places, kind, capsys):
    found = fedspend.verify(places[kind])
    assert type(found).__name__ == kind
    code = main(["verify", str(places[kind]), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (code == 0) == found.ok == said["ok"]
    assert json.loads(json.dumps(found.to_dict())).items() <= said.items()


def test_a_broken_run_is_a_finding_and_an_altered_plan_is_refused(places, tmp_path):
    plan = json.loads(places["Verification"].read_text())
    (tmp_path / "run").mkdir()
    for file in places["RunVerification"].iterdir():
        (tmp_path / "run" / file.name).write_bytes(file.read_bytes())
    plan["delta"] = 0.5
    (tmp_path / "run" / "plan.json").write_text(json.dumps(plan))
    found = fedspend.verify(str(tmp_path / "run"))
    assert not found.ok
    assert "plan" in [check.check for check in found.checks if check.good is False]
    with pytest.raises(Refused):
        fedspend.verify(tmp_path / "run" / "plan.json")


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("RunVerification", {"colluders": 2}, "colluders is not for a run directory"),
        ("RunVerification", {"colluders": 0}, "colluders is not for a run directory"),
        ("RunVerification", {"seed": 0}, "seed is not for a run directory"),
        ("RunVerification", {"max_pld": 200}, "max_pld is not for a run directory"),
        ("RunVerification", {"opening": "x.json"}, "opening is not for a run directory"),
        ("Checked", {"ledger": "a.db"}, "ledger is not for a publication"),
        ("Checked", {"colluders": 0}, "colluders is not for a publication"),
        ("Checked", {"opening": "x.json"}, "opening 'x.json': there is no such file"),
        ("Verification", {"key": "a.pub"}, "key is not for a plan file"),
        ("Verification", {"ledger": ""}, "ledger is not for a plan file"),
        ("Verification", {"colluders": 0}, "colluders must be at least 1, got 0"),
    ],
)
def test_arguments_that_are_not_for_it_are_refused(places, kind, given, says):
    with pytest.raises(InvalidInput) as refused:
        fedspend.verify(places[kind], **given)
    assert says in str(refused.value)
    assert "--" not in str(refused.value)
    flags = {"opening": "open", "max_pld": None, "seed": None}
    [(name, value)] = given.items()
    flag = flags.get(name, name)
    if flag is not None:
        assert main(["verify", str(places[kind]), f"--{flag}", str(value)]) == 2


def test_a_folder_with_a_plan_alone_is_no_run(places, tmp_path, monkeypatch, capsys):
    body = places["Verification"].read_bytes()
    (tmp_path / "plan.json").write_bytes(body)
    (tmp_path / "report.html").touch()
    with pytest.raises(
        InvalidInput, match=r"holds a plan and no run; to verify the plan: fedspend"
    ):
        fedspend.verify(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["verify", "."]) == 2
    assert "fedspend verify plan.json" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").touch()  # of a run, whose other files are gone
    assert not fedspend.verify(tmp_path).ok


def test_what_is_no_plan_run_or_publication_is_named(places, tmp_path):
    with pytest.raises(InvalidInput, match=r"there is no '.*nothing'; name a plan file, a run"):
        fedspend.verify(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="holds no run"):
        fedspend.verify(tmp_path)
    with pytest.raises(InvalidInput, match=r"it belongs to a run: fedspend verify"):
        fedspend.verify(places["RunVerification"] / "metrics.jsonl")
    with pytest.raises(InvalidInput, match="plan must be a plan, or the path of a plan file"):
        fedspend.verify(3)


@pytest.mark.full(only=["records"])
@pytest.mark.parametrize("document", [TINY, RECORDS], ids=["clients", "records"])
def test_a_config_gives_the_plan_of_the_command(document, tmp_path, capsys):
    path = write_toml(tmp_path / "config.toml", document)
    assert main(["plan", str(path), "--json", "--set", "train.rounds=3"]) == 0
    said = json.loads(capsys.readouterr().out)
    for config in (document, str(path), path):
        assert fedspend.plan(config=config, overrides=["train.rounds=3"]).hash == said["hash"]


def test_a_config_may_spend_what_a_ledger_has_left(tmp_path):
    ledger = str(tmp_path / "accounts.db")
    fedspend.train(TINY, output=tmp_path / "run", ledger=ledger, progress=False)
    left = ["ledger.spend=remaining", f"ledger.location={ledger}"]
    with pytest.raises(Refused):
        fedspend.plan(config=TINY, overrides=left)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"config": TINY, "rounds": 3}, "config has all that a plan needs, and rounds is given"),
        ({"config": TINY, "epsilons": [1.0]}, "and epsilons is given"),
        ({"config": 3}, "config must be a TOML file or a dict of sections, got 3"),
        ({"config": "nothing.toml"}, "nothing.toml cannot be read"),
        ({"config": TINY, "overrides": ["train.roundz=3"]}, "did you mean 'rounds'"),
        ({"config": TINY, "overrides": ["data.shards=3"]}, "shards in [data] has no effect"),
        ({"overrides": ["train.rounds=3"]}, "plan also needs epsilons= and delta="),
    ],
)
def test_a_wrong_config_is_one_line(given, says):
    with pytest.raises(InvalidInput) as refused:
        fedspend.plan(**given)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
