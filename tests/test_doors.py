"""The same question gets the same answer at every door: on the command line and from Python, from a
config and from arrays, alone and as one of many runs.
"""

import copy
import json
import random
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from lib.configs import small

import fedspend
from fedspend import tune
from fedspend.basics.toml_text import config_text
from fedspend.cli.main import main
from fedspend.configuration.config import any_config
from fedspend.ledger import Ledger
from fedspend.planning.protocol import load_any_plan
from fedspend.runs.setup import from_config

TINY = small()

RECORDS = small("record", privacy__noise_multiplier=None, train__rounds=3, train__local_steps=2)

pytestmark = pytest.mark.usefixtures("quick_verify")  # plans are verified elsewhere


@pytest.fixture
def records():
    return copy.deepcopy(RECORDS)


def accuracy_of_run(config):
    """That of the model which the same run leaves, on rows that are held out."""
    return fedspend.train(config, overrides=["data.validation=0.2"]).accuracy


def test_tune_trains_records_as_they_are_trained(records):
    """At this clip next to nothing is learned; without privacy the clip would mean nothing."""
    records["privacy"]["clip"] = 1e-6
    found = tune(records, ["train.lr=0.5"], seeds=1, workers=1)
    assert found.accuracy.item() == accuracy_of_run(records)


def test_design_trains_records_as_they_are_trained(records):
    from fedspend.design.trainings import train_one

    records["privacy"]["clip"] = 1e-6
    config = any_config(records, ["data.validation=0.2"])
    assert train_one(config)[1][-1] == accuracy_of_run(records)


def test_tune_judges_the_model_that_a_stopping_rule_leaves(short):
    short["stop"] = {"patience": 1, "least": 0.5}
    short["train"]["tail_average"] = 1
    found = tune(short, ["train.lr=0.3"], seeds=1, workers=1)
    assert found.accuracy.item() == accuracy_of_run(short)


@pytest.fixture
def short(tiny):
    tiny["privacy"]["delta"] = 1e-2
    tiny["train"] |= {"rounds": 3, "tail_average": 1}
    return tiny


@pytest.mark.full(only=["strictest", "individual-rates"])
@pytest.mark.parametrize("policy", [None, "uniform", "strictest", "individual-rates"])
def test_a_config_without_a_method_is_planned_and_trained_alike(short, policy):
    del short["method"], short["privacy"]["saving_rate"]
    if policy is not None:
        short["privacy"]["policy"] = policy
    made, result = fedspend.plan(config=short), fedspend.train(short)
    assert result.plan.hash == made.hash
    if policy is None:
        assert made.parameters["policy"] == "optimal"
        assert made.epsilon == pytest.approx(made.budget, rel=1e-4), "everyone's own budget"


GEOMETRIC = {"policy": "geometric", "weights": 1.1}


def planned_by_arm(config, methods):
    from fedspend.configuration.plan_inputs import resolve
    from fedspend.runs.comparison import arms_of, distinct_arms

    arms = distinct_arms(config, (), arms_of(methods))
    return {arm.name: resolve(one).request.plan() for arm, one in arms.items()}


@pytest.mark.parametrize("privacy", [GEOMETRIC, {"weights": 1.1}, {"saving_rate": 0.4}])
def test_compare_gives_every_method_its_own_policy(short, privacy):
    """What the file says for the policy of its own method changes no other."""
    del short["privacy"]["saving_rate"]
    short["privacy"] |= privacy
    found = planned_by_arm(short, ["dp-fedavg", "idp-fedavg", "time-adaptive", "adaptive-clip"])
    policies = [plan.policy for plan in found.values()]
    own = "geometric" if "weights" in privacy else "spend-as-you-go"
    assert policies == ["strictest", "uniform", own, "uniform"]


def test_compare_lets_a_method_use_what_the_methods_of_the_file_does_not(short):
    short["method"]["name"] = "idp-fedavg"
    found = planned_by_arm(short, ["idp-fedavg", "time-adaptive"])
    assert [plan.policy for plan in found.values()] == ["uniform", "spend-as-you-go"]


# --- arrays ---------------------------------------------------------------------------------------

ROWS = {
    name: ([[float(n), 1.0], [1.0, float(-n)]], [n % 2, 1 - n % 2])
    for n, name in enumerate(["a", "b", "c"], start=1)
}


def on_arrays(plan, **options):
    import torch

    torch.manual_seed(0)
    usual = {"lr": 0.5, "batch_size": 2, "local_steps": 2, "randomness": "seeded"}
    return fedspend.train(
        clients=ROWS,
        model=torch.nn.Linear(2, 2),
        plan=plan,
        test=ROWS["a"],
        **{**usual, **options},
    )


def plan_of_rows(**options):
    return fedspend.plan(
        dict.fromkeys(ROWS, 50.0), delta=1e-2, rounds=3, rate=1.0, accountant="rdp", **options
    )


@pytest.mark.parametrize(
    "other",
    [
        {"local_steps": 3},
        {"momentum": 0.5},
        {"server_lr": 0.5},
        {"server_momentum": 0.5},
        {"tail_average": 2},
        {"clipping": "per-layer"},
        {"noise": "discrete"},
    ],
)
def test_a_run_on_arrays_goes_on_under_its_own_settings_alone(tmp_path, other):
    from fedspend.errors import InvalidInput

    plan = plan_of_rows(noise="discrete")
    usual = {"noise": "central"} if "noise" in other else {}
    on_arrays(plan, output=tmp_path / "run", **usual)
    with pytest.raises(InvalidInput, match=f"holds another run: .*{next(iter(other))}"):
        on_arrays(plan, output=tmp_path / "run", resume=True, **usual | other)


def test_a_run_on_arrays_of_an_older_version_goes_on(tmp_path, monkeypatch):
    """It did not name all of its settings."""
    from fedspend.runs.arrays import Options

    named = ("plan", "train.seed", "train.lr", "train.batch_size", "shape.blur", "shape.lus")
    now = Options.settings
    with monkeypatch.context() as then:
        then.setattr(Options, "settings", lambda *args: {key: now(*args)[key] for key in named})
        before = on_arrays(plan_of_rows(), output=tmp_path / "run", momentum=0.5)
    again = on_arrays(plan_of_rows(), output=tmp_path / "run", momentum=0.5, resume=True)
    assert again.accuracy == before.accuracy


def test_a_run_on_arrays_adapts_its_clip():
    clips = [line["clip"] for line in on_arrays(plan_of_rows(method="adaptive-clip")).metrics]
    assert len(set(clips)) == len(clips)


def test_a_plan_from_python_states_the_noise_of_its_bits(short):
    short["method"]["name"] = "adaptive-clip"
    del short["privacy"]["saving_rate"]
    privacy = short["privacy"]
    of_config = fedspend.plan(config=short)
    made = fedspend.plan(
        of_config.budget,
        delta=privacy["delta"],
        rounds=3,
        rate=privacy["rate"],
        clip=privacy["clip"],
        accountant="rdp",
        method="adaptive-clip",
        learning_rates=[1.0] * 3,
    )
    assert made.bit_noise == of_config.bit_noise
    assert made.hash == of_config.hash


# --- what is not priced, not known, or not there --------------------------------------------------


def test_nobody_says_that_updates_are_not_clipped_who_does_not_know():
    import numpy as np

    from fedspend.server.answers import Answers, Statistics
    from fedspend.server.methods.base import RoundTerms
    from fedspend.server.rounds import ABOUT_UPDATES, describe

    none = Statistics(np.zeros(0), np.zeros(0, bool), np.zeros(0, bool))
    answers = Answers(np.zeros(2), ("a", "b"), {}, 0.0, 0.0, {}, none)
    terms = RoundTerms(np.ones(2), np.ones(2), 1.0, 2.0)
    told = describe(answers, terms, simulation=True)
    assert told["cohort"] == 2
    assert not set(ABOUT_UPDATES) & set(told)


def test_the_best_config_is_read_again_with_any_column_name(short):
    import tomllib

    from fedspend.tuning.best_config import best_config
    from fedspend.tuning.grid import settings_of

    short["data"] = {
        "name": "csv",
        "path": "rows.csv",
        "label": "blood type",
        "classes": 2,
        "bounds": {"x 1": [0.0, 1.0], "a.b": [0.0, 2.0]},
    }
    [setting] = settings_of(short, (), ["train.lr=0.3"])
    text = best_config(setting, "as given")
    assert tomllib.loads(text)["data"]["bounds"] == {"x 1": [0.0, 1.0], "a.b": [0.0, 2.0]}


def test_ids_of_whole_numbers_have_one_order():
    import numpy as np

    from fedspend.data.dataset import natural_ids

    numbers = np.array([10, 2, 1, 2])
    assert natural_ids(numbers) == natural_ids(numbers.astype(str)) == ("1", "2", "10")
    assert natural_ids(np.array(["10", "2", "b"])) == ("10", "2", "b")
    assert natural_ids(np.array(["010", "2"])) == ("010", "2"), "these are not numbers"


@pytest.mark.full
@pytest.mark.parametrize("shares", [(5, 7), (11, 1)])
def test_a_private_tune_spends_budgets_whose_rates_depend_on_each_other(shares):
    from fedspend.accounting.trials import trials_of
    from fedspend.planning.request import PlanRequest
    from fedspend.tuning.planning import plan_tune

    few, many = shares
    budget = [5.0] * few + [20.0] * many
    request = PlanRequest(
        epsilons=budget,
        clients=tuple(map(str, range(12))),
        delta=1e-2,
        rounds=3,
        rate=0.5,
        policy="individual-rates",
    )
    made = plan_tune([("train.lr=0.1",)], [request], trials_of("logarithmic", 2.0, None))
    assert (made.epsilon <= made.budget).all()
    assert made.epsilon == pytest.approx(made.budget, rel=1e-3)


# --- the planner ----------------------------------------------------------------------------------


def test_the_planner_shows_the_plan_of_a_file_with_rates_by_budget(tmp_path):
    from fedspend.pages.planner.settings import settings_of

    made = fedspend.plan(
        [4.0] * 3 + [9.0] * 3, delta=1e-2, rounds=3, rate=0.7, policy="individual-rates"
    )
    made.save(tmp_path / "plan.json")
    assert settings_of((tmp_path / "plan.json").read_text(), "plan.json").rate == 0.7


@pytest.mark.parametrize(
    "more",
    [
        {"train": {"lr_schedule": "linear"}},
        {"privacy": {"policy": "optimal"}, "train": {"server_momentum": 0.9}},
        {"method": {"name": "adaptive-clip"}},
    ],
)
def test_the_planner_refuses_a_config_whose_plan_it_does_not_show(short, more):
    from fedspend.basics.toml_text import config_text
    from fedspend.errors import InvalidInput
    from fedspend.pages.planner.settings import settings_of

    del short["privacy"]["saving_rate"], short["privacy"]["groups"]
    short["privacy"]["epsilon"] = 6.0
    short["train"]["server_momentum"] = 0.0
    settings_of(config_text(short), "c.toml")
    for section, keys in more.items():
        short[section] |= keys
    with pytest.raises(InvalidInput, match="more than the planner shows"):
        settings_of(config_text(short), "c.toml")


# --- small ones -----------------------------------------------------------------------------------


def test_tune_refuses_a_metric_that_it_does_not_choose_by(short):
    from fedspend.errors import InvalidInput

    short["task"] = {"metrics": ["f1", "accuracy"]}
    with pytest.raises(InvalidInput, match="a tune compares accuracy"):
        tune(short, ["train.lr=0.3"], seeds=1)


def test_a_tail_of_more_than_all_rounds_is_refused_at_every_door(short, tmp_path, capsys):
    short["train"]["tail_average"] = 4
    (tmp_path / "config.toml").write_text(config_text(short))
    file, tail, given = str(tmp_path / "config.toml"), "train.tail_average=4", short | {}
    for command, *more in (
        ["plan"],
        ["train"],
        ["compare", "--methods", "dp-fedavg"],
        ["tune", "--grid", "train.lr=0.1"],
    ):
        assert main([command, file, *more]) == 2
        assert "tail_average is 4, but rounds is 3" in capsys.readouterr().err
    given["train"] = short["train"] | {"tail_average": 1}
    for refused in (
        lambda: fedspend.train(given, overrides=[tail]),
        lambda: fedspend.plan(config=given, overrides=[tail]),
        lambda: tune(given, ["train.tail_average=1,4"], seeds=1),
        lambda: fedspend.audit(given, overrides=[tail]),
        lambda: on_arrays(plan_of_rows(), tail_average=4),
        lambda: plan_of_rows(policy="optimal", tail=4),
    ):
        with pytest.raises(fedspend.InvalidInput, match=r"is 4, but .* set .* to at most 3"):
            refused()


@pytest.mark.full
def test_an_audit_of_fewer_rounds_has_no_longer_tail(short):
    short["train"]["tail_average"] = 3
    assert fedspend.audit(short, rounds=2, trials=40).rounds == 2


def test_a_run_of_an_older_version_with_a_longer_tail_goes_on(short, tmp_path, monkeypatch):
    """It took the mean of all rounds."""
    longer = short | {"train": short["train"] | {"tail_average": 9}}
    with monkeypatch.context() as then:
        then.setattr("fedspend.configuration.config.tail_within_rounds", lambda *_: None)
        stopped_at(longer, tmp_path / "run")
    with pytest.raises(fedspend.InvalidInput, match="holds another run"):
        fedspend.train(short, output=tmp_path / "run", resume=True)
    short["train"]["tail_average"] = 3
    fedspend.train(short, output=tmp_path / "run", resume=True)
    assert same_model(fedspend.train(short), tmp_path / "run")


def test_tune_takes_no_bar(short, monkeypatch):
    from fedspend.tuning import simulated

    monkeypatch.setattr(simulated, "_accuracy", lambda _config, _seed: {"accuracy": 0.5})
    assert tune(short, ["train.lr=0.3"], seeds=1, workers=1, progress=False).rows()


# --- one config at every door ---------------------------------------------------------------------
# Every door is asked in turn for what it says of the same run. Some configs are drawn, with a seed.

SHORT = {"privacy": {"delta": 1e-2, "saving_rate": None}, "train": {"rounds": 3, "tail_average": 1}}
STOP = {"patience": 1, "least": 0.5}


def config_with(base, *changes):
    """The config with these changes; None takes a key away."""
    made = copy.deepcopy(base)
    for change in changes:
        for section, keys in change.items():
            table = made.setdefault(section, {})
            table |= keys
            for key in [key for key, value in table.items() if value is None]:
                del table[key]
    return made


def tiny_with(*changes):
    return config_with(TINY, SHORT, *changes)


def method(name, **keys):
    return {"method": {"name": name, **keys}}


# a model that is not trained for all clients at once
IN_WORKERS = tiny_with({"model": {"name": "small-cnn"}, "engine": {"workers": 2}}) | {
    "data": {"name": "digits", "share": 0.05, "clients": 6, "partition": "iid"}
}
NAMED = {
    "nothing named": tiny_with({"method": {"name": None}}),
    "uniform": tiny_with(method("idp-fedavg")),
    "strictest": tiny_with(method("dp-fedavg")),
    "individual rates": tiny_with(
        method("idp-fedavg"), {"privacy": {"policy": "individual-rates"}}
    ),
    "saving": tiny_with({"privacy": {"saving_rate": 0.4}}),
    "geometric": tiny_with({"privacy": {"weights": 1.1}}),
    "fedsgd": tiny_with(method("dp-fedsgd"), {"train": {"local_steps": 1}}),
    "adaptive": tiny_with(method("adaptive-clip")),
    "no privacy": tiny_with(method("fedavg"), {"privacy": {"groups": None}}),
    "discrete": tiny_with({"privacy": {"noise": "discrete"}}),
    "distributed": tiny_with({"privacy": {"noise": "distributed"}}),
    "both": tiny_with({"privacy": {"noise": "discrete-distributed", "bits": 24}}),
    "everyone asked": tiny_with({"engine": {"ask": "everyone"}}),
    "stopping": tiny_with({"stop": STOP}),
    "stopping, last": tiny_with({"stop": STOP | {"keep": "last"}}),
    "tail": tiny_with({"train": {"tail_average": 2, "server_momentum": 0.0}}),
    "falling": tiny_with({"train": {"lr_schedule": "linear"}}),
    "per layer": tiny_with({"privacy": {"clipping": "per-layer"}}),
    "pld": tiny_with({"privacy": {"accountant": "pld"}}),
    "two workers": IN_WORKERS,
    "rpdp": RECORDS,
    "minimum": config_with(RECORDS, method("minimum")),
    "dropout": config_with(RECORDS, method("dropout")),
    "filter": config_with(RECORDS, method("filter"), {"privacy": {"noise_multiplier": 4.0}}),
}
QUICK = ("nothing named", "rpdp")


def drawn(seed):
    """A config of which nobody thought."""
    choose = random.Random(seed).choice
    name = choose(["dp-fedavg", "idp-fedavg", "time-adaptive", "adaptive-clip", None])
    found = tiny_with(
        method(name),
        {
            "privacy": {
                "noise": choose(["central", "distributed", "discrete"]),
                "clip": choose([0.2, 1.0]),
                "rate": choose([0.6, 1.0]),
                "clipping": choose(["flat", "per-layer"]),
            },
            "train": {
                "rounds": choose([2, 3]),
                "lr_schedule": choose(["constant", "cosine"]),
                **choose(
                    [
                        {"server_momentum": 0.0},
                        {"server_momentum": 0.5},
                        {"server_optimizer": "adam", "server_momentum": None},
                    ]
                ),
                "momentum": choose([0.0, 0.9]),
            },
        },
    )
    return config_with(found, choose([{}, {"stop": STOP}]))


def full_but(names, quick):
    """Cases by name, of which one is for every day."""
    return [pytest.param(name, marks=() if name == quick else pytest.mark.full) for name in names]


CASES = [
    *(
        pytest.param(config, id=name, marks=() if name in QUICK else pytest.mark.full)
        for name, config in NAMED.items()
    ),
    *(pytest.param(drawn(seed), id=f"drawn {seed}", marks=pytest.mark.full) for seed in range(8)),
]


def parameters(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


def by_command(config, folder, *more):
    """The run that the command leaves."""
    folder.mkdir()
    (folder / "config.toml").write_text(config_text(config))
    train = ["train", str(folder / "config.toml"), "-o", str(folder / "run"), "--quiet"]
    assert main([*train, *map(str, more)]) == 0
    return folder / "run"


def is_of_clients(plan):
    return plan is not None and plan.unit == "client"


def final_model(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def same_model(result, folder):
    kept = final_model(folder)
    ours = {name: one.detach().numpy() for name, one in result.model.named_parameters()}
    return kept.keys() == ours.keys() and all((kept[name] == ours[name]).all() for name in ours)


def stopped_at(config, folder, **more):
    """A run that was stopped after its first round."""

    class Stopped(Exception):
        pass

    def stop(_line, _rounds):
        raise Stopped

    with pytest.raises(Stopped):
        fedspend.train(config, output=folder, on_round=stop, **more)


def stopped_and_resumed(config, folder, **more):
    """The run that was stopped after its first round, and went on."""
    stopped_at(config, folder, **more)
    return fedspend.train(config, output=folder, resume=True, **more)


def on_its_arrays(config, plan, **more):
    """The same run from the rows, the module and the plan that the config stands for."""
    from fedspend.runs.arrays import OPTIONS

    setup, given = from_config(any_config(config)), {"randomness": "seeded"}
    engine = config.get("engine", {})
    given |= {"engine": engine.get("name"), "workers": engine.get("workers")}
    for section in ("train", "shape", "privacy"):
        given |= {key: value for key, value in config.get(section, {}).items() if key in OPTIONS}
    rows = setup.federation.dataset
    return fedspend.train(
        clients={
            client: (rows.features[shard], rows.labels[shard])
            for client, shard in zip(setup.federation.clients, setup.federation.shards, strict=True)
        },
        model=setup.module,
        plan=plan,
        test=(rows.test_features, rows.test_labels),
        classes=rows.classes,
        stop=config.get("stop"),
        **given | more,
    )


def through_flower(config, monkeypatch):
    from flower.in_process import grid_of

    from fedspend.engines.flower import line

    grid = grid_of(from_config(any_config(config)).workload())
    monkeypatch.setattr(line, "Clock", lambda: grid.clock)
    asked = {key: value for key, value in config.get("engine", {}).items() if key == "ask"}
    engine = {"name": "flower", "deadline": 60.0, "retries": 1, **asked}
    return fedspend.train(config | {"engine": engine}, grid=grid)


@pytest.mark.parametrize("config", CASES)
def test_every_door_that_trains_leaves_the_same_model(config, tmp_path, monkeypatch):
    result = fedspend.train(config)
    run = by_command(config, tmp_path / "command")
    assert same_model(result, run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epsilon"] for line in lines] == [line["epsilon"] for line in result.metrics]
    resumed = stopped_and_resumed(config, tmp_path / "resumed")
    assert same_model(result, tmp_path / "resumed")
    assert resumed.metrics == result.metrics
    if not is_of_clients(result.plan):
        return
    planned_for_arrays = config.get("engine", {}).get("ask") is None
    if planned_for_arrays:
        arrays = on_its_arrays(config, result.plan)
        assert same_model(arrays, run)
        assert arrays.metrics["epsilon"] == result.metrics["epsilon"]
    if find_spec("flwr") is not None:
        elsewhere = through_flower(config, monkeypatch)
        assert same_model(elsewhere, run)
        assert elsewhere.metrics["epsilon"] == result.metrics["epsilon"]


# --- on a ledger ----------------------------------------------------------------------------------


def account_in(place, unit="client"):
    """What everybody has spent and has left, and what became of each round of every run."""
    with Ledger.open(place) as ledger:
        found = ledger.balances(unit)
        rounds = [tuple(run.rounds.values()) for run in ledger.state.runs.values()]
        closed = [run.closed for run in ledger.state.runs.values()]
    return found.names, found.spent.tolist(), found.remaining.tolist(), rounds, closed


REAL = ("uniform", "nothing named", "distributed", "adaptive", "pld", "stopping", "two workers")


@pytest.mark.parametrize("name", full_but(REAL, "uniform"))
def test_every_door_charges_a_real_run_alike(name, tmp_path):
    """What is drawn differs, and what it costs does not."""
    config = config_with(NAMED[name], {"privacy": {"randomness": "os"}})
    places = {door: tmp_path / f"{door}.db" for door in ("python", "resumed", "arrays", "command")}
    result = fedspend.train(config, ledger=places["python"])
    resumed = stopped_and_resumed(config, tmp_path / "resumed", ledger=places["resumed"])
    arrays = on_its_arrays(config, result.plan, ledger=places["arrays"])
    run = by_command(config, tmp_path / "command", "--ledger", places["command"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    said = [line["epsilon"] for line in lines]
    assert all(one.metrics["epsilon"] == said for one in (result, resumed, arrays))
    found = [account_in(place) for place in places.values()]
    assert found == [found[0]] * len(places)
    _, spent, _, [rounds], [closed] = found[0]
    assert max(spent) == pytest.approx(max(said[-1].values()), rel=1e-9)
    assert set(rounds) == {"committed"}
    assert closed is not None


LEFT = {
    "nothing named": NAMED["nothing named"],
    "uniform": NAMED["uniform"],
    "saving": NAMED["saving"],
    "rpdp": RECORDS,
    "filter": NAMED["filter"],
}


@pytest.mark.parametrize("name", full_but(LEFT, "uniform"))
def test_every_door_spends_what_remains_alike(name, tmp_path):
    config = LEFT[name]
    first = tmp_path / "first.db"
    plan = fedspend.plan(config=config)
    with Ledger.create(first, simulation=True) as ledger:
        ledger.register(plan.names, 2 * plan.budget, delta=plan.delta, unit=plan.unit)
    fedspend.train(config, ledger=first)

    def on_a_copy(door):
        place = tmp_path / f"{door}.db"
        shutil.copy(first, place)
        shutil.copy(f"{first}.head", f"{place}.head")
        return place

    (tmp_path / "config.toml").write_text(config_text(config))
    path, asked = tmp_path / "plan.json", ["ledger.spend=remaining"]
    there = [*asked, f"ledger.location={first}"]
    flags = [part for one in there for part in ("--set", one)]
    assert main(["plan", str(tmp_path / "config.toml"), *flags, "-o", str(path), "--quiet"]) == 0
    made = load_any_plan(path)
    ours = fedspend.plan(config=config, overrides=there)
    places = {door: on_a_copy(door) for door in ("python", "resumed", "command")}
    result = fedspend.train(config, overrides=asked, ledger=places["python"])
    assert made.hash == ours.hash == result.plan.hash
    assert (made.epsilon < 2 * plan.budget).all()
    left = config_with(config, {"ledger": {"spend": "remaining"}})
    stopped_and_resumed(left, tmp_path / "resumed", ledger=places["resumed"])
    run = by_command(config, tmp_path / "command", "--remaining", "--ledger", places["command"])
    assert same_model(result, run)
    assert same_model(result, tmp_path / "resumed")
    if plan.unit == "client":
        places["arrays"] = on_a_copy("arrays")
        arrays = on_its_arrays(config, made, ledger=places["arrays"])
        assert same_model(arrays, run)
    found = [account_in(place, plan.unit) for place in places.values()]
    assert found == [found[0]] * len(places)
    assert len(found[0][3]) == 2


@pytest.mark.full
def test_records_at_their_silos_are_trained_as_on_one_machine(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    from flower import silos

    folder = silos.written(tmp_path)
    alone, server = silos.on_one_machine(folder), silos.server_config(folder)
    server["engine"]["silos"] = sorted(silos.SILOS)  # as one machine lists them
    result = fedspend.train(alone)
    assert same_model(result, by_command(alone, tmp_path / "command"))
    grid = silos.grid_of(folder, monkeypatch)
    there = fedspend.train(server, grid=grid, output=tmp_path / "silos")
    assert same_model(result, tmp_path / "silos")
    assert there.metrics["accuracy"] == result.metrics["accuracy"]
    assert len(there.plan.silos) == len(silos.SILOS)


# --- what plans, and what tries -------------------------------------------------------------------


@pytest.mark.parametrize("config", CASES)
def test_every_door_that_plans_makes_the_same_plan(config, tmp_path):
    result = fedspend.train(config)
    if result.plan is None:
        return
    (tmp_path / "config.toml").write_text(config_text(config))
    path = tmp_path / "plan.json"
    assert main(["plan", str(tmp_path / "config.toml"), "-o", str(path)]) == 0
    made = load_any_plan(path)
    assert made.hash == fedspend.plan(config=config).hash == result.plan.hash
    again = fedspend.train(config, plan=made)
    assert again.metrics == result.metrics
    if not is_of_clients(made) or config.get("stop"):
        return
    claimed = max(group.claimed for group in fedspend.audit(config, trials=40).groups)
    assert claimed == pytest.approx(made.epsilon.max(), rel=1e-12), "in another order of sums"


@pytest.mark.parametrize("config", CASES)
def test_every_door_that_tries_settings_finds_what_training_finds(config):
    from fedspend.design.trainings import train_one

    given = [f"train.lr={config['train']['lr']}"]
    result = fedspend.train(config)
    compared = fedspend.compare(config, seeds=1, workers=1)
    assert compared.final.item() == result.accuracy

    held_out = fedspend.train(config, overrides=["data.validation=0.2"])
    tuned = tune(config, given, seeds=1, workers=1)
    assert tuned.accuracy.item() == held_out.accuracy
    if config.get("stop"):
        return  # a search goes on to the last round
    apart = any_config(config, ["data.validation=0.2", "engine.workers=1"])
    assert train_one(apart)[1] == held_out.metrics["accuracy"]


@pytest.mark.parametrize("config", CASES)
def test_influence_is_measured_around_the_plan_that_is_trained(config):
    from fedspend.design.influence import PLAIN, Trial

    plan = fedspend.train(config).plan
    if not is_of_clients(plan) or plan.parameters.get("method", "time-adaptive") not in PLAIN:
        return
    trial = Trial.of(any_config(config))
    assert trial.deviation == np.sqrt(np.mean(np.square(plan.noise_of_average)))
    assert (trial.clip_factors == plan.clip_factors).all()


def files_of_rows(folder):
    """The same rows in every format, by clients whose ids are whole numbers."""
    import pandas

    rng = np.random.default_rng(4)
    client = np.repeat([10, 2, 1, 33], 6)
    label = rng.integers(0, 2, client.size)
    x = (rng.integers(-4, 5, (client.size, 2)) / 4 + label[:, None]).astype(np.float32)
    table = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "client": client, "label": label})
    table.to_csv(folder / "rows.csv", index=False)
    table.to_csv(folder / "semicolon.csv", index=False, sep=";")
    table.to_parquet(folder / "rows.parquet")
    arrays = {"features": x, "label": label, "client": client}
    np.savez(folder / "rows.npz", **arrays)
    (folder / "npy").mkdir()
    for name, array in arrays.items():
        np.save(folder / "npy" / f"{name}.npy", array)
    return {
        "csv": "rows.csv",
        "semicolon": "semicolon.csv",
        "parquet": "rows.parquet",
        "npz": "rows.npz",
        "npy": "npy",
    }


@pytest.mark.full
def test_the_same_rows_in_every_format_are_the_same_run(tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    found = {}
    for kind, path in files_of_rows(tmp_path).items():
        name = {"semicolon": "csv"}.get(kind, kind)
        data = {"name": name, "path": str(tmp_path / path), "client": "client", "label": "label"}
        config = config_with(tiny_with(), {"privacy": {"randomness": "seeded"}})
        config["data"] = data | {"classes": 2, "validation": 0.25}
        result = fedspend.train(config)
        found[kind] = result.plan.hash, parameters(result.model).tobytes()
    assert set(found.values()) == {found["csv"]}
