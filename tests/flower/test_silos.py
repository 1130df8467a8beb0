"""Records whose budgets stay at their silos: the model of one machine, an account at every silo,
and nothing private on the way.
"""

import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")

from flower.in_process import Fault
from flower.silos import (
    SILOS,
    grid_of,
    node_config,
    on_one_machine,
    server_config,
    written,
)

import fedspend
from fedspend.client.contribution import Contribution
from fedspend.client.task import ClientTask, LocalTraining, RecordTerms, RoundTask, silo_terms
from fedspend.engines.flower.keys import read_keys
from fedspend.engines.flower.line import TransportFailed
from fedspend.engines.flower.wire import (
    Hello,
    Refusal,
    greeting_content,
    read_answer,
    read_introduction,
    task_content,
)
from fedspend.errors import FedspendError, FedspendWarning, InvalidInput
from fedspend.flower import silo as silo_room
from fedspend.flower.loopback import make_node_key
from fedspend.flower.node import open_node
from fedspend.flower.silo import Kept
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.noise.numbers import NumberGrid
from fedspend.records import plan_of, verify_records
from fedspend.records.planning import plan_records
from fedspend.records.policies import Wanted
from fedspend.records.silos import Offer, certified, plan_text, read_plan_text, silo_plan
from fedspend.records.terms import Terms
from fedspend.report.html import write_report
from fedspend.runs.verifying import verify_run
from fedspend.stored.run import StoredRun


def parameters(result):
    return torch.nn.utils.parameters_to_vector(result.model.parameters()).detach().numpy()


def same_model(a, b):
    return parameters(a).tobytes() == parameters(b).tobytes()


@pytest.fixture
def consortium(tmp_path):
    """Three silos' files, and the same rows in one file."""
    return written(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [{}, {"privacy": {"rate": 0.7}}, {"method": {"saving_share": 0.4}}],
    ids=["all", "sampled", "saving"],
)
def test_the_same_seed_ends_with_the_same_model(consortium, monkeypatch, changes):
    alone, server = on_one_machine(consortium), server_config(consortium)
    # one machine lists clients in alphabetical order
    server["engine"]["silos"] = sorted(SILOS)
    for section, values in changes.items():
        alone[section] |= values
        server[section] |= values
    grid = grid_of(consortium, monkeypatch)
    result = fedspend.train(server, grid=grid, output=consortium / "run")
    assert same_model(result, fedspend.train(alone))


@pytest.mark.full
def test_a_silo_that_declares_its_data_otherwise_is_named_before_anything_is_planned(
    consortium, monkeypatch
):
    configs = configs_of(consortium)
    configs[1]["data"]["bounds"] = [-3, 3]
    grid = grid_of(consortium, monkeypatch, configs)
    with pytest.raises(InvalidInput, match=r"client 'south', declares .* server does, in bounds"):
        fedspend.train(server_config(consortium), grid=grid, output=consortium / "run")
    assert not (consortium / "run").exists()
    assert len(grid.sent) == len(SILOS)  # the offer; no plan came of it


def configs_of(folder, **privacy):
    return [node_config(folder, silo, **privacy) for silo in SILOS]


def balances(config):
    with Ledger.open(f"{config['node']['state']}/ledger.db") as book:
        found = book.balances("record")
        return np.asarray(found.spent), book.accounts("record").budget


def events(place):
    with Ledger.open(place) as book:
        return [json.loads(body) for _, body, _ in book.entries()]


# --- a real run -----------------------------------------------------------------------------------


@pytest.fixture
def real(consortium, monkeypatch):
    """Randomness of the system everywhere, keys, and a ledger that outlives the run."""
    configs = configs_of(consortium, randomness="os")
    grid = grid_of(consortium, monkeypatch, configs)
    lines = ["client,key"]
    for silo, place in zip(SILOS, grid.places.values(), strict=True):
        lines.append(f"{silo},{make_node_key(consortium / silo)}")
        (consortium / "keys.csv").write_text("\n".join(lines) + "\n")
        place.key = read_keys(consortium / "keys.csv")[silo].encode()
    server = server_config(consortium, randomness="os") | {
        "engine": {"name": "flower", "keys": str(consortium / "keys.csv"), "deadline": 20.0},
        "ledger": {"location": str(consortium / "accounts.db")},
    }
    return server, grid, configs


def trained(server, grid, folder, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)
        return fedspend.train(server, grid=grid, output=folder, **settings)


@pytest.mark.full
def test_a_real_run_is_charged_at_every_silo_and_leaves_nothing_private_at_the_server(
    real, consortium
):
    server, grid, configs = real
    folder = consortium / "run"
    result = trained(server, grid, folder)
    assert [one["round"] for one in result.metrics] == [1, 2, 3]
    for config in configs:
        spent, budget = balances(config)
        assert np.all(spent <= budget)
        assert np.all(spent[budget <= 5] > 0.9 * budget[budget <= 5])
        kinds = [one["kind"] for one in events(f"{config['node']['state']}/ledger.db")]
        assert kinds[-1] == "close"
        assert kinds.count("reserve") == kinds.count("commit") == 3
        assert kinds.count("rows") == 1
        assert audit(f"{config['node']['state']}/ledger.db").ok
    write_report([folder], folder / "report.html")
    told = verify_run(folder, ledger=consortium / "accounts.db")
    assert told.ok
    assert {one.check: one.good for one in told.checks}["silos"] is None
    everything = b"".join(path.read_bytes() for path in folder.iterdir())
    everything += (consortium / "accounts.db").read_bytes()
    for secret in (b"north-1", b"harbour-12", b"records.csv", b"epsilon,label"):
        assert secret not in everything
    page = (folder / "report.html").read_text()
    assert "which its silo alone knows" in page
    for certificate in result.plan.silos.values():
        assert certificate[:12] in page
    made = fedspend.publish(folder, ledger=consortium / "accounts.db")
    assert made.epsilon >= result.plan.epsilon.max()
    assert fedspend.verify_publication(made.folder).ok


@pytest.mark.full
def test_a_second_run_needs_what_is_left_at_the_silos_and_new_accounts_at_the_server(
    real, consortium
):
    server, grid, configs = real
    trained(server, grid, consortium / "first")
    with pytest.raises(InvalidInput, match="its records' budgets, or its account of them"):
        trained(server, grid, consortium / "second")
    assert not (consortium / "second").exists()
    for place, config in zip(grid.places.values(), configs, strict=True):
        key = place.key
        place.node = open_node(config | {"ledger": {"exhausted": "leave-out"}})
        assert place.key == key
    # less noise is spent by those who still can; the others are left out
    server["train"] |= {"rounds": 1, "local_steps": 1}
    result = trained(server, grid, consortium / "second")
    assert len(result.metrics) == 1
    for config in configs:
        spent, budget = balances(config)
        assert np.all(spent <= budget)
    with Ledger.open(consortium / "accounts.db") as book:
        assert len(book.accounts("record")) == 6


@pytest.mark.full
def test_a_run_that_is_killed_goes_on_and_a_silo_never_sends_two_answers(real, consortium):
    server, grid, configs = real

    def broken(method):
        if len(StoredRun(consortium / "run").metrics()) == 1 and method == "pull_messages":
            raise ConnectionError("gone")

    grid.broken = lambda method: broken(method) if (consortium / "run").exists() else None
    with pytest.raises(TransportFailed):
        trained(server, grid, consortium / "run")
    grid.broken = lambda _: None
    plan = StoredRun(consortium / "run").plan().hash
    with pytest.raises(InvalidInput, match="cannot add any"):
        trained(server, grid, consortium / "run", resume=True, replan=True)
    result = trained(server, grid, consortium / "run", resume=True)
    assert result.plan.hash == plan
    assert [bool(one.get("skipped")) for one in result.metrics] == [False, True, False]
    for config in configs:
        found = events(f"{config['node']['state']}/ledger.db")
        assert [one["round"] for one in found if one["kind"] == "reserve"] == [0, 1, 2]
        assert len({one["run"] for one in found if "run" in one}) == 1
    assert verify_run(consortium / "run", ledger=consortium / "accounts.db").ok
    other = server | {"privacy": server["privacy"] | {"noise_multiplier": 3.0}}
    with pytest.raises(InvalidInput, match="other terms or silos"):
        trained(other, grid, consortium / "run", resume=True)


@pytest.mark.full
def test_a_task_that_comes_again_gets_the_same_bytes_and_is_charged_once(real, consortium):
    server, grid, configs = real
    seen = []

    class Twice:
        def __init__(self, node):
            self.node = node

        def __getattr__(self, name):
            return getattr(self.node, name)

        def task(self, content):
            first, again = (self.node.task(content) for _ in range(2))
            assert read_answer(first).vector.tobytes() == read_answer(again).vector.tobytes()
            seen.append(read_answer(first).round)
            return again

    for place in grid.places.values():
        place.node = Twice(place.node)
    trained(server, grid, consortium / "run")
    assert sorted(seen) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for config in configs:
        kinds = [one["kind"] for one in events(f"{config['node']['state']}/ledger.db")]
        assert kinds.count("reserve") == 3


@pytest.mark.full
def test_a_lost_silo_is_left_out_and_its_round_stays_charged_there(real, consortium):
    server, grid, configs = real
    grid.faults = {"south": Fault(drop=True, rounds=(1,))}
    result = trained(server, grid, consortium / "run")
    assert len(result.metrics) == 3
    spent, budget = balances(configs[1])
    assert np.all(spent <= budget)
    assert "south" not in (consortium / "run" / "metrics.jsonl").read_text()


@pytest.mark.full
def test_a_crash_between_charge_and_answer_costs_the_round(real, consortium, monkeypatch):
    """Fresh noise on the same step would be a second release."""
    server, grid, configs = real
    node, crashed = next(iter(grid.places.values())).node, []
    keep = node.answered.keep

    def killed(task, body):
        if task.shared.round == 1 and not crashed:
            crashed.append(task)
            raise OSError("the disk is full")
        keep(task, body)

    monkeypatch.setattr(type(node.answered), "keep", lambda _, task, body: killed(task, body))
    trained(server, grid, consortium / "run")
    (task,) = crashed
    answer = read_answer(node.task(task_content(task)))
    assert answer == Refusal("replayed")
    found = events(f"{configs[0]['node']['state']}/ledger.db")
    assert [one["round"] for one in found if one["kind"] == "reserve"] == [0, 1, 2]
    assert [one["round"] for one in found if one["kind"] == "commit"] == [0, 2]


# --- what a server may not ask --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": {"name": "minimum"}}, "needs the strictest budget"),
        ({"method": {"name": "dropout"}}, "needs the mean budget"),
        ({"method": {"name": "filter"}}, "would fall silent"),
        ({"privacy": {"epsilon": 3.0}}, "belongs in the config of each node"),
        ({"privacy": {"preferences": "three-levels"}}, "belongs in the config of each node"),
        ({"privacy": {"noise_multiplier": None}}, "noise_multiplier is missing"),
        ({"privacy": {"delta": None}}, "delta is missing"),
        ({"ledger": {"spend": "remaining"}}, "each silo keeps the account"),
        ({"engine": {"silos": None}}, "nothing says which silos take part"),
        ({"engine": {"silos": ["north", "north"]}}, "north"),
        ({"data": {"path": "all.csv"}}, "each client keeps its own rows"),
        ({"privacy": {"noise": "distributed"}}, "client-level"),
    ],
)
def test_what_needs_everybodys_budgets_is_refused(consortium, monkeypatch, changes, why):
    server = server_config(consortium)
    for section, values in changes.items():
        server[section] = {
            key: value
            for key, value in (server.get(section, {}) | values).items()
            if value is not None
        }
    grid = grid_of(consortium, monkeypatch)
    with pytest.raises(InvalidInput, match=why):
        fedspend.train(server, grid=grid, output=consortium / "run")
    assert not (consortium / "run").exists()
    assert grid.sent == []


def test_nothing_is_planned_before_the_silos_have(consortium):
    with pytest.raises(InvalidInput, match="each silo then plans its own"):
        plan_of(server_config(consortium))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"privacy": {"delta": 1e-5}}, "offer"),
        ({"privacy": {"noise_multiplier": 3.0}}, "offer"),
        ({"train": {"rounds": 2}}, "offer"),
        ({"privacy": {"delta": None}}, "offer"),
        ({"node": {"unit": "client"}}, "records"),
    ],
)
def test_a_silo_answers_only_to_terms_that_its_own_config_allows(consortium, changes, why):
    config = node_config(consortium, "north")
    for section, values in changes.items():
        config[section] = {
            key: value
            for key, value in (config.get(section, {}) | values).items()
            if value is not None
        }
    if why == "records":
        del config["data"]["budget"]
    node = open_node(config)
    assert said_to(node, Hello(True, 0, 0, silo_offer=offer().to_text())) == Refusal(why)
    assert not (consortium / "north" / "state" / "ledger.db").exists()


def offer(**changes):
    return replace(
        Offer.new(Terms(1e-3, 3, 4, 1.0, 2.0), 0.8, Wanted(), SILOS),
        **changes,
    )


def said_to(node, hello):
    return read_introduction(node.hello(greeting_content(hello)))


def handed(node, made):
    said = said_to(node, Hello(True, 0, 0, silo_offer=made.to_text()))
    return said.certificate


def bound_node(folder, silo="north", made=None):
    """A node that has handed in its certificate, and joined the plan that names it."""
    node, made = open_node(node_config(folder, silo)), made or offer()
    certificates = dict.fromkeys(SILOS, "0" * 64) | {silo: handed(node, made)}
    plan = silo_plan(made, certificates)
    said = said_to(node, Hello(True, 8, 8, silo_plan=plan_text(plan)))
    assert said.certificate == certificates[silo]
    return node, plan


def task_of(plan, silo="north", round=0, run="r1", **changes):
    training = LocalTraining(batch_size=1, steps=4)
    shared = RoundTask(
        round, np.zeros(8, np.float32), training, 0.3, 8, run=run, plan=plan.hash, **changes
    )
    return ClientTask(silo, 0, np.inf, shared, silo_terms(plan.clip, 2.0))


def answered(node, task):
    return read_answer(node.task(task_content(task)))


def test_a_certificate_hides_the_plan_and_opens_to_it_alone(consortium):
    node, made = open_node(node_config(consortium, "north")), offer()
    first = handed(node, made)
    assert handed(node, made) == first  # a greeting that comes again
    assert handed(node, offer()) != first  # the same terms and budgets, another run
    kept = Kept.read(consortium / "north" / "state" / "plans" / made.id)
    assert certified(first, kept.opening, kept.plan)
    other = open_node(node_config(consortium, "south"))
    handed(other, made)
    theirs = Kept.read(consortium / "south" / "state" / "plans" / made.id)
    assert not certified(first, kept.opening, theirs.plan)
    assert not certified(theirs.certificate, kept.opening, kept.plan)
    assert verify_records(kept.plan).ok
    for path in (consortium / "north" / "state").rglob("*.json"):
        assert path.stat().st_mode & 0o077 == 0


def test_what_is_handed_in_does_not_depend_on_rows(consortium):
    """Not even its length says how many records there are."""
    lengths, declared = set(), set()
    for silo in SILOS:
        said = said_to(
            open_node(node_config(consortium, silo)),
            Hello(True, 0, 0, silo_offer=offer().to_text()),
        )
        lengths.add(len(said.certificate))
        declared.add(said.meaning)
        public = {"parameters", "loss", "model", "meaning"}
        assert set(vars(said)) == {"client", "version", "simulation", "certificate"} | public
    assert lengths == {64}
    assert len(declared) == 1


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize(
    "change",
    [
        lambda _, made: silo_plan(made, dict.fromkeys(SILOS, "1" * 64)),
        lambda plan, made: silo_plan(
            replace(made, terms=replace(made.terms, noise_multiplier=0.5)), plan.silos
        ),
        lambda plan, made: silo_plan(replace(made, clip=9.0), plan.silos),
        lambda plan, made: silo_plan(replace(made, id="0" * 32), plan.silos),
        lambda plan, _: replace(plan, parameters=plan.parameters | {"offer": "../../escape"}),
        lambda plan, _: replace(
            plan, parameters={k: v for k, v in plan.parameters.items() if k != "silos"}
        ),
    ],
    ids=["certificate", "noise", "clip", "offer", "path", "no silos"],
)
def test_a_plan_that_is_not_the_one_a_silo_certified_is_refused(consortium, change):
    node, made = open_node(node_config(consortium, "north")), offer()
    plan = silo_plan(made, dict.fromkeys(SILOS, "0" * 64) | {"north": handed(node, made)})
    wrong = change(plan, made)
    assert said_to(node, Hello(True, 8, 8, silo_plan=plan_text(wrong))) == Refusal("certificate")
    assert answered(node, task_of(wrong)) == Refusal("certificate")
    assert answered(node, task_of(plan)) == Refusal(
        "certificate"
    )  # it has not joined that one either


def test_a_certificate_is_for_one_plan(consortium):
    node, plan = bound_node(consortium)
    another = silo_plan(
        replace(offer(), id=plan.parameters["offer"]), plan.silos | {"south": "2" * 64}
    )
    assert said_to(node, Hello(True, 8, 8, silo_plan=plan_text(another))) == Refusal("certificate")


def test_offers_that_come_to_nothing_do_not_pile_up(consortium, monkeypatch):
    """The one that a plan has come for stays, and so does its run."""
    monkeypatch.setattr(silo_room, "MOST_OFFERS", 2)
    node, plan = bound_node(consortium)
    early, *late = [offer() for _ in range(3)]
    for made in (early, *late):
        handed(node, made)
    kept = {path.name for path in (consortium / "north" / "state" / "plans").iterdir()}
    assert {plan.parameters["offer"], *(made.id for made in late)} <= kept
    assert early.id not in kept
    assert isinstance(answered(node, task_of(plan)), Contribution)
    dropped = silo_plan(early, plan.silos)
    assert said_to(node, Hello(True, 8, 8, silo_plan=plan_text(dropped))) == Refusal("certificate")


@pytest.mark.full(but_every=5)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda task: replace(task, records=silo_terms(0.8, 1.0)), "planned"),
        (lambda task: replace(task, records=silo_terms(8.0, 2.0)), "planned"),
        (lambda task: replace(task, shared=replace(task.shared, round=3)), "planned"),
        (lambda task: replace(task, shared=replace(task.shared, bit=True)), "planned"),
        (
            lambda task: replace(task, shared=replace(task.shared, metric=NumberGrid(2**20, 0.0))),
            "planned",
        ),
        (lambda task: replace(task, shared=replace(task.shared, layers=(4, 4))), "planned"),
        (lambda task: replace(task, coin=0.5), "planned"),
        (lambda task: replace(task, records=None), "records"),
        (
            lambda task: replace(
                task,
                records=RecordTerms(np.ones(9), np.full(9, 4.0), np.full(4, 9.0), 0.8, 2.0),
            ),
            "records",
        ),
        (lambda task: replace(task, client="south"), "client"),
    ],
    ids=["noise", "clip", "round", "bit", "metric", "layers", "coin", "clients", "rates", "silo"],
)
def test_a_task_that_asks_for_more_is_refused_before_anything_is_drawn(consortium, change, why):
    node, plan = bound_node(consortium)
    assert answered(node, change(task_of(plan))) == Refusal(why)
    place = consortium / "north" / "state" / "ledger.db"
    charged = [one for one in events(place) if one["kind"] == "commit"] if place.exists() else []
    assert charged == []


def test_a_second_run_under_one_plan_is_refused_by_the_account(consortium):
    node, plan = bound_node(consortium)
    for round in range(3):
        assert isinstance(answered(node, task_of(plan, round=round)), Contribution)
    assert answered(node, task_of(plan, run="r2")) == Refusal("account")
    spent, budget = balances(node_config(consortium, "north"))
    assert np.all(spent <= budget)


def test_rounds_in_which_a_silo_was_not_asked_are_charged_too(consortium):
    node, plan = bound_node(consortium, made=offer(terms=Terms(1e-3, 3, 4, 0.5, 2.0)))
    assert isinstance(answered(node, task_of(plan, round=2)), Contribution)
    found = events(consortium / "north" / "state" / "ledger.db")
    assert [one["round"] for one in found if one["kind"] == "reserve"] == [0, 1, 2]
    assert answered(node, task_of(plan, round=1)) == Refusal("replayed")


def test_damaged_state_stops_a_silo(consortium):
    node, plan = bound_node(consortium)
    folder = consortium / "north" / "state" / "plans" / plan.parameters["offer"]
    other = bound_node(consortium, "south", offer(id=plan.parameters["offer"]))[0]
    theirs = other.silo.folder / "plans" / plan.parameters["offer"] / "plan.json"
    (folder / "plan.json").write_bytes(theirs.read_bytes())
    assert answered(node, task_of(plan)) == Refusal("failed")
    (folder / "about.json").write_text("{")
    assert answered(node, task_of(plan)) == Refusal("failed")


# --- at a silo ------------------------------------------------------------------------------------


def test_a_listed_record_without_a_row_has_its_place(consortium):
    """Whether a listed record has a row changes neither the plan nor what it is divided by."""
    config = node_config(consortium, "north")
    del config["data"]["budget"]
    config["privacy"]["budgets"] = str(consortium / "budgets.csv")
    listed = [f"north-{n},{2 + n % 3}" for n in range(9)]
    (consortium / "budgets.csv").write_text("record,epsilon\n" + "\n".join(listed) + "\n")
    made, rows = offer(), consortium / "north" / "records.csv"
    # the file's column of budgets is not a feature
    text = [",".join(np.delete(line.split(","), 4)) for line in rows.read_text().splitlines()]
    rows.write_text("\n".join(text) + "\n")
    handed(open_node(config), made)
    whole = Kept.read(consortium / "north" / "state" / "plans" / made.id).plan
    rows.write_text("\n".join(text[:-2]) + "\n")
    again = replace(made, id="1" * 32)
    handed(open_node(config), again)
    assert Kept.read(consortium / "north" / "state" / "plans" / again.id).plan.hash == whole.hash
    rows.write_text("\n".join([*text, text[-1].replace("north-8", "north-9")]) + "\n")
    with pytest.raises(InvalidInput, match="'north-9' has no budget"):
        open_node(config)


def test_a_silo_may_divide_by_a_number_of_its_own(consortium):
    """What its noise then shows is that number, not the sum of its records' rates."""
    config = node_config(consortium, "north")
    config["node"]["batch"] = 100.0
    node, made = open_node(config), offer()
    plan = silo_plan(made, dict.fromkeys(SILOS, "0" * 64) | {"north": handed(node, made)})
    said_to(node, Hello(True, 8, 8, silo_plan=plan_text(plan)))
    own = node.silo.own_task(task_of(plan)).records
    assert own.batch.tolist() == [100.0] * 4
    small = answered(node, task_of(plan)).vector
    shutil.rmtree(consortium / "north" / "state")
    plain, plan = bound_node(consortium)
    assert np.linalg.norm(small) < np.linalg.norm(answered(plain, task_of(plan)).vector) / 5


def test_a_silo_that_does_not_count_on_sampling_holds_against_a_server_that_picks(consortium):
    sampled = offer(terms=Terms(1e-3, 3, 4, 0.3, 2.0))
    plans = {}
    for how in ("counted", "ignored"):
        config = node_config(consortium, "north")
        config["node"] |= {"sampling": how}
        made = replace(sampled, id=("1" if how == "counted" else "2") * 32)
        handed(open_node(config), made)
        plans[how] = Kept.read(consortium / "north" / "state" / "plans" / made.id).plan
    picks = {how: verify_records(plan).observers[2] for how, plan in plans.items()}
    assert picks["ignored"].largest <= plans["ignored"].budget.max()
    assert picks["counted"].largest > plans["counted"].epsilon.max()
    assert np.all(plans["ignored"].rate <= plans["counted"].rate)


def test_real_records_need_ids_and_one_owner(consortium):
    config = node_config(consortium, "north", randomness="os")
    open_node(config)
    rows = consortium / "north" / "records.csv"
    rows.write_text(rows.read_text().replace("north-", "").replace("id", "number"))
    del config["data"]["record"]
    with pytest.raises(InvalidInput, match=r"data\.record"):
        open_node(config)
    with pytest.raises(InvalidInput, match=r"node\.unit"):
        open_node(config | {"node": {"client": "north", "batch": 4.0}})


@pytest.mark.full
@given(
    rounds=st.integers(1, 12),
    steps=st.integers(1, 8),
    rate=st.floats(0.05, 1.0),
    noise=st.floats(0.6, 20.0),
    saving=st.none() | st.floats(0.05, 1.0),
)
@settings(max_examples=4)
def test_no_plan_of_a_silo_costs_more_than_the_public_one(rounds, steps, rate, noise, saving):
    """Whatever the budgets; and an offer is read back as it was."""
    terms = Terms(1e-4, rounds, steps, rate, noise)
    made = offer(terms=terms, wanted=Wanted(saving_share=saving), silos=("a",))
    assert Offer.from_text(made.to_text()) == made
    public = silo_plan(made, {"a": "0" * 64})
    budgets = np.array([0.5, 2.0, 1e3, 1e5])
    own = plan_records(budgets, [0] * 4, terms, clients=["a"], wanted=made.wanted, clip=0.8)
    assert own.epsilon.max() <= public.epsilon.max() <= public.budget.max()
    assert np.all(own.rate <= public.rate[:, :1])
    assert read_plan_text(plan_text(public)).hash == public.hash


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"format": "fedspend offer 1"}', "[" * 2000, "null", '{"format": 1}']
)
def test_what_is_not_an_offer_is_refused(text):
    with pytest.raises(InvalidInput):
        Offer.from_text(text)


def test_an_offer_with_terms_that_mean_nothing_is_refused():
    text = offer().to_text()
    for before, after in (
        ('"noise_multiplier":2.0', '"noise_multiplier":NaN'),
        ('"clip":0.8', '"clip":-1'),
        ('"clip":0.8', '"clip":1e-170'),
        ('"rpdp"', '"minimum"'),
        ('"delta":0.001', '"delta":2'),
        ('"exact"', '"scf"'),
        ('"rounds":3', '"rounds":1000000000'),
        ('"local_steps":4', '"local_steps":1000000000000'),
    ):
        assert before in text
        with pytest.raises(FedspendError):
            Offer.from_text(text.replace(before, after))
