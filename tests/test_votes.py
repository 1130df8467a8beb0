"""AE-DPFL: votes on public rows. Limits, what one client can change, noise, labels that nobody
reads, kills, and bad input.
"""

import copy
import dataclasses
import functools
import json
import math
import warnings

import numpy as np
import pytest
import torch
from boundary import client_task, summed
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.configs import small, write_toml
from lib.noise import has_deviation
from lib.runs import killed
from torch import nn

import fedspend.runs.certifying
import fedspend.runs.setup
from fedspend import data
from fedspend.basics.tensors import read_tensors
from fedspend.client import work
from fedspend.client.batches import step_batches
from fedspend.client.bounding import bounded
from fedspend.client.task import LocalTraining
from fedspend.client.voting import votes as votes_of
from fedspend.configuration.config import config_of
from fedspend.engines.local import make_engine
from fedspend.errors import FedspendWarning, InvalidInput, Refused
from fedspend.noise.randomness import Randomness
from fedspend.runs import directory as runs
from fedspend.runs.running import run
from fedspend.runs.setup import flat_parameters, from_config
from fedspend.runs.training import train
from fedspend.server.answers import gather
from fedspend.server.mechanism import Gaussian
from fedspend.server.rounds import TrainingState, begin, play, round_task, step, tasks_of
from fedspend.server.student import Ballot, Student

pytestmark = [
    pytest.mark.usefixtures("quick_verify"),
    pytest.mark.filterwarnings("ignore:noise on a class"),
]
ROWS = torch.from_numpy(np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32))


@pytest.fixture
def voting(tiny):
    """The tiny run with votes: 72 public rows of 240, so 18 are asked in each of 4 rounds."""
    tiny["data"]["public_share"] = 0.3
    tiny["method"] = {"name": "ae-dpfl"}
    tiny["train"] |= {"tail_average": 1, "server_momentum": 0.0}
    return tiny


def linear():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))


def flat(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def cast_by(module, ballot, updates, round, clips):
    """One row of votes for each client's update."""
    told = {"parameters": flat(module).numpy(), "round": round, "asked": ballot.asked(round)}
    some = [client_task(ballot.size, clip, number, **told) for number, clip in enumerate(clips)]
    return torch.stack(
        [
            votes_of(task, update, module, ballot.rows)
            for task, update in zip(some, updates, strict=True)
        ]
    )


# --- what a client sends --------------------------------------------------------------------------


def test_a_vote_is_the_class_that_the_local_model_prefers():
    module, ballot = linear(), Ballot(ROWS, 15, 3)
    updates = torch.randn(4, flat(module).numel(), generator=torch.Generator().manual_seed(3))
    clips = np.array([0.5, 1.0, 2.0, 0.01])
    votes = cast_by(module, ballot, updates, 1, clips).view(4, 15, 3)
    for vote, update, clip in zip(votes, updates, clips, strict=True):
        local = copy.deepcopy(module)
        nn.utils.vector_to_parameters(flat(module) + update, local.parameters())
        chosen = local(ROWS[15:30]).argmax(dim=1)
        assert torch.equal(vote.argmax(dim=1), chosen)
        assert (vote > 0).sum() == 15, "one class of each row"
        assert float(vote.double().norm()) == pytest.approx(clip, rel=1e-6), (
            "as long as the clip: nothing is wasted"
        )


def test_a_model_that_did_not_move_casts_no_vote_and_one_that_diverged_is_discarded():
    module, ballot = linear(), Ballot(ROWS, 10, 3)
    updates = torch.zeros(5, flat(module).numel())
    updates[1:] = 0.3
    updates[2, 4], updates[3, 0] = math.nan, math.inf
    updates[4] = 3e38  # finite, but its scores are not
    cast = cast_by(module, ballot, updates, 0, np.ones(5))
    answers = summed(cast, np.ones(5))
    assert answers.statistics.zeroed.tolist() == [False, False, True, True, True]
    assert not cast[0].any()
    np.testing.assert_array_equal(
        answers.total, cast[1].double().numpy() * (answers.total.max() / float(cast[1].max()))
    )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 5),
    st.sampled_from([0.0, 1e-3, 1.0, 1e6, 1e38, math.nan]),
    st.floats(1e-3, 10),
)
def test_whatever_a_clients_model_is_it_moves_the_sum_by_at_most_its_clip(
    seed, client, scale, clip
):
    """Zero-out: the sum with any model of this client, beside the sum with none."""
    module, ballot = linear(), Ballot(ROWS, 20, 3)
    clips = clip * np.array([0.3, 0.5, 1.0, 1.5, 2.0, 3.0])
    generator = torch.Generator().manual_seed(seed)
    updates = torch.randn(6, flat(module).numel(), generator=generator)
    updates[client] *= scale
    cast = cast_by(module, ballot, updates, seed % 7, clips)
    without = cast.clone()
    without[client] = 0
    moved = summed(cast, clips).total - summed(without, clips).total
    assert np.linalg.norm(moved) <= clips[client]


def lying(*arguments):
    """A client that sends a hundred times what it may."""
    return 100 * votes_of(*arguments)


def unclipped(vector, task, randomness):
    """The broken mechanism."""
    return bounded(vector, dataclasses.replace(task, clip_norm=1e6), randomness)


def distance_without_client_0(setup, monkeypatch, bound=bounded):
    """How far the sum of the votes moves when client 0 is left out, in its clips, if everybody
    lies.
    """
    monkeypatch.setattr(work, "votes", lying)
    monkeypatch.setattr(work, "bounded", bound)
    terms, engine, sums = setup.method.terms(0, {}), make_engine("local", setup.workload()), []
    shared = round_task(begin(flat_parameters(setup.module), setup.method), terms, setup.training)
    for cohort in (np.arange(6), np.arange(1, 6)):
        tasks = tasks_of(cohort, terms, setup.training.clients, shared)
        sums.append(gather(tasks, engine.run(tasks), shared.size).total)
    return np.linalg.norm(sums[0] - sums[1]) / terms.clip_norm[0]


def test_votes_that_are_too_long_are_clipped_and_unclipped_ones_would_be_noticed(
    voting, monkeypatch
):
    setup = from_config(config_of(voting))
    assert distance_without_client_0(setup, monkeypatch) <= 1
    assert distance_without_client_0(setup, monkeypatch, unclipped) > 50


# --- limits ---------------------------------------------------------------------------------------


def plurality_by_hand(setup, round, start):
    """Votes of each client's own model, trained with torch's optimiser from `start`, on the rows of
    the round.
    """
    dataset, student = setup.federation.dataset, setup.training.server.student
    counts = np.zeros((student.ballot.queries, 3))
    asked = student.ballot.rows[student.ballot.asked(round)]
    for client, rows in enumerate(setup.federation.shards):
        local = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
        nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), local.parameters())
        optimizer = torch.optim.SGD(local.parameters(), lr=0.3)
        for batch in step_batches(
            setup.randomness.generator("batches", round, client),
            rows.size,
            LocalTraining(8, steps=3),
        ):
            optimizer.zero_grad()
            x, y = (
                torch.from_numpy(dataset.features[rows[batch]]),
                torch.from_numpy(dataset.labels[rows[batch]]),
            )
            nn.functional.cross_entropy(local(x), y).backward()
            optimizer.step()
        if rows.size:
            counts[np.arange(len(counts)), local(asked).argmax(dim=1).numpy()] += 1
    return counts


class Noiseless:
    """A plan's method with its noise taken away."""

    def __init__(self, method):
        self.method, self.name = method, method.name
        self.start, self.learn = method.start, method.learn

    def terms(self, round, state):
        return dataclasses.replace(self.method.terms(round, state), deviation=0.0)


@pytest.mark.full(but=["local"])
@pytest.mark.parametrize("engine", ["local", "reference"])
def test_without_noise_and_with_everyone_labels_are_the_plurality_of_the_clients_models(
    voting, engine
):
    del voting["privacy"]["saving_rate"], voting["privacy"]["groups"]
    voting["privacy"] |= {"rate": 1.0, "epsilon": 4.0}
    setup = from_config(config_of(voting | {"engine": {"name": engine}}))
    method, student = Noiseless(setup.method), setup.training.server.student
    running = make_engine(engine, setup.workload())
    progress = begin(flat_parameters(setup.module), method)
    for t in range(4):
        made = play(
            progress,
            method,
            running,
            setup.training,
            setup.randomness,
            Gaussian(setup.randomness),
            {},
        )
        release, statistics = made.release, made.statistics
        counts = plurality_by_hand(setup, t, progress.parameters)
        votes = (
            release.update.reshape(-1, 3) * 6 * math.sqrt(student.ballot.queries) / setup.plan.clip
        )
        np.testing.assert_allclose(votes, counts, atol=1e-4)
        np.testing.assert_array_equal(votes.round().argmax(axis=1), counts.argmax(axis=1))
        assert statistics["labels_changed"] == 0
        assert statistics["agreement"] == pytest.approx(
            (counts.max(axis=1) / counts.sum(axis=1)).mean()
        )
        progress = step(progress, release, method, setup.training.server)
    assert progress.votes.any(axis=1).all(), "every public row was asked about once"


def test_a_students_lesson_is_plain_sgd_on_the_released_labels():
    module, ballot = linear(), Ballot(ROWS, 20, 3)
    student = Student(module, ballot, 0.2, 3, 7, Randomness(4))
    released = np.random.default_rng(1).standard_normal(60).astype(np.float32)
    votes = student.heard(np.zeros(0, np.float32), released, 1)
    assert not votes[:20].any()
    taught = student.taught(flat(module).numpy(), votes, 1)
    labels, plain = torch.from_numpy(released.reshape(20, 3).argmax(axis=1)), copy.deepcopy(module)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.2)
    generator = Randomness(4).generator("student", 2)
    generator.integers(2**63)
    for batch in step_batches(generator, 20, LocalTraining(7, epochs=3)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(ROWS[20:][batch]), labels[batch]).backward()
        optimizer.step()
    np.testing.assert_allclose(taught, flat(plain).numpy(), atol=1e-6)


def test_rows_are_asked_in_turn_and_their_votes_add_up():
    ballot = Ballot(ROWS, 16, 3)
    assert [ballot.asked(t)[0] for t in range(4)] == [0, 16, 32, 8]
    assert ballot.asked(2).tolist() == [*range(32, 40), *range(8)]
    student = Student(linear(), ballot, 0.1, 1, 8, Randomness(0))
    votes = np.zeros(0, np.float32)
    for t in range(3):
        votes = student.heard(votes, np.ones(48, np.float32), t)
    assert votes[:, 0].tolist() == [2.0] * 8 + [1.0] * 32


def test_a_client_with_a_larger_budget_weighs_more(voting):
    setup = from_config(config_of(voting))
    clips = setup.method.terms(0, {}).clip_norm
    assert clips.min() < 0.8 * clips.max()
    cast = cast_by(setup.module, setup.training.server.student.ballot, torch.ones(6, 21), 0, clips)
    np.testing.assert_allclose(cast.double().norm(dim=1), clips, rtol=1e-6)


# --- noise ----------------------------------------------------------------------------------------


def only_noise(sections, done=1, change=lambda terms: terms):
    """A round in which nobody has rows: what is released is noise, in planned deviations."""
    setup = from_config(config_of(sections))
    nothing = dict.fromkeys(setup.federation.clients, np.zeros(0, dtype=np.int64))
    engine = make_engine("local", dataclasses.replace(setup.workload(), shards=nothing))
    progress = dataclasses.replace(begin(flat_parameters(setup.module), setup.method), done=done)
    planned = setup.method.terms(done, {})
    method = Noiseless(setup.method)
    method.terms = lambda *_: change(planned)
    made = play(
        progress, method, engine, setup.training, setup.randomness, Gaussian(setup.randomness), {}
    )
    return made.release.update.astype(np.float64) * planned.denominator / planned.deviation


@pytest.mark.parametrize("noise", ["central", "distributed", "discrete", "discrete-distributed"])
@pytest.mark.parametrize("randomness", ["seeded", "os"])
def test_noise_on_votes_is_as_planned_and_missing_noise_would_be_noticed(voting, noise, randomness):
    voting["data"] |= {"examples": 4000, "clients": 6}
    voting["privacy"] |= {"noise": noise, "randomness": randomness}
    voting["votes"] = {"queries": 1200}
    assert has_deviation(only_noise(voting))
    if noise == "central":
        # of 3,600 numbers 0.85 passes with chance 1e-18, and 0.9 would with 1e-4
        assert not has_deviation(
            only_noise(
                voting,
                change=lambda terms: dataclasses.replace(terms, deviation=terms.deviation * 0.85),
            )
        )
        without = functools.partial(dataclasses.replace, deviation=0.0)
        if randomness == "os":  # a real run does not even begin such a round
            with pytest.raises(Refused, match="too small beside the sum of all clips"):
                only_noise(voting, change=without)
        else:
            assert not has_deviation(only_noise(voting, change=without))


@pytest.mark.full(but=["discrete"])
@pytest.mark.parametrize("noise", ["discrete", "discrete-distributed"])
def test_discrete_noise_trains_and_repeats(voting, noise):
    voting["privacy"] |= {"noise": noise}
    first, second = (run(from_config(config_of(voting)), None) for _ in range(2))
    assert first.metrics == second.metrics
    assert first.plan.discrete
    assert all(line["overflowed"] == 0 for line in first.metrics)


# --- runs -----------------------------------------------------------------------------------------


def test_with_much_budget_the_student_learns(voting):
    del voting["data"]["alpha"]
    voting["data"] |= {"examples": 2000, "partition": "iid", "clients": 40}
    del voting["privacy"]["saving_rate"], voting["privacy"]["groups"]
    voting["privacy"] |= {"epsilon": 50.0, "rate": 1.0}
    voting["train"]["local_steps"] = 10
    result = train(voting)
    assert result.accuracy > 0.75
    assert all(line["labels_changed"] < 0.1 for line in result.metrics)
    assert not {"clipped_share", "mean_norm", "norm_quantiles"} & set(result.metrics[-1]), (
        "votes are all as long as their clip"
    )


@pytest.mark.full
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_threads_and_workers_change_no_bit(voting, model, monkeypatch):
    monkeypatch.setattr("fedspend.engines.clientwise._BLOCK_CLIENTS", 2)
    voting["data"] = {"name": "digits", "clients": 6, "public_share": 0.3, "share": 0.1}
    voting["model"] = {"name": {"mlp": "mlp", "cnn": "small-cnn"}[model]}
    voting["train"]["rounds"] = 2
    results, threads = [], torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        # mlp has no workers
        results.append(train(voting | ({"engine": {"workers": count}} if model == "cnn" else {})))
    torch.set_num_threads(threads)
    assert results[0].metrics == results[1].metrics
    assert torch.equal(flat(results[0].model), flat(results[1].model))


def test_labels_of_public_rows_are_never_read(voting, monkeypatch):
    """Other labels on the rows that were set aside change nothing; on any other row they do."""
    plain = train(voting).metrics
    load = data.load

    def scrambled(which):
        def other(*arguments, **options):
            dataset = load(*arguments, **options)
            chosen = Randomness(5).generator("data", 4).permutation(240)
            rows = chosen[:72] if which == "public" else chosen[72:]
            labels = dataset.labels.copy()
            labels[rows] = (labels[rows] + 1) % 3
            return dataclasses.replace(dataset, labels=labels)

        return other

    monkeypatch.setattr(fedspend.configuration.data_inputs.data, "load", scrambled("public"))
    assert train(voting).metrics == plain
    monkeypatch.setattr(fedspend.configuration.data_inputs.data, "load", scrambled("private"))
    assert train(voting).metrics != plain


def test_rows_that_were_set_aside_belong_to_nobody(voting):
    public = {
        row.tobytes()
        for row in from_config(config_of(voting)).training.server.student.ballot.rows.numpy()
    }
    for method in ("ae-dpfl", "dp-fedavg"):
        voting["method"]["name"] = method
        federation = from_config(config_of(voting)).federation
        held = {
            federation.dataset.features[row].tobytes()
            for shard in federation.shards
            for row in shard
        }
        assert (len(held), len(public)) == (168, 72)
        assert not held & public, "every method gets the same federation"


def test_a_lost_round_leaves_its_rows_without_votes(voting, tmp_path):
    voting["privacy"]["randomness"] = "os"
    with killed(at="play"):
        train(voting, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    result = train(voting, output=tmp_path / "run", resume=True)
    assert result.metrics[0]["skipped"]
    votes = runs.RunDirectory(tmp_path / "run").training_state().votes
    assert not votes[:18].any()
    assert votes[18:].any(axis=1).all()
    assert not {"agreement", "labels_changed", "discarded", "cohort"} & set(result.metrics[-1]), (
        "a real run says nothing of votes"
    )


def test_other_methods_keep_no_votes(tiny, tmp_path):
    train(tiny, output=tmp_path / "run")
    progress = runs.RunDirectory(tmp_path / "run").training_state()
    assert isinstance(progress, TrainingState)
    assert progress.votes.size == 0
    arrays, _ = read_tensors(tmp_path / "run" / "checkpoint.safetensors")
    assert "votes" not in arrays


# --- your own data --------------------------------------------------------------------------------


def own(folder, kind, public):
    generator = np.random.default_rng(2)
    features, labels = generator.random((60, 2)), generator.integers(0, 2, 60)
    if kind == "csv":
        numbered = enumerate(zip(features, labels, strict=True))
        lines = [
            f"{a},{b},{y},{'train' if n < 50 else 'test'},c{n % 5}" for n, ((a, b), y) in numbered
        ]
        (folder / "own.csv").write_text("\n".join(["a,b,label,split,client", *lines]))
    else:
        np.savez(
            folder / "own.npz",
            features=features[:50], label=labels[:50],
            test_features=features[50:], test_label=labels[50:],
            client=np.arange(50) % 5,
        )  # fmt: skip
    data = {
        "name": kind,
        "path": str(folder / f"own.{kind}"),
        "classes": 2,
        "clients": 5,
        "public_path": str(public),
    }
    return small("plain", data=data, method__name="ae-dpfl")


def test_public_rows_of_your_own_from_csv_and_npz(tmp_path):
    rows = np.random.default_rng(3).random((9, 2))
    lines = [f"{b},{a},who knows" for a, b in rows]
    # columns go by name, and labels are not read
    (tmp_path / "public.csv").write_text("\n".join(["b,a,label", *lines]))
    np.savez(tmp_path / "public.npz", features=rows)
    found = []
    for kind in ("csv", "npz"):
        setup = from_config(config_of(own(tmp_path, kind, tmp_path / f"public.{kind}")))
        assert setup.randomness.source == "os"
        found.append(setup.training.server.student.ballot.rows.numpy())
        assert len(run(setup, None, project=kind).metrics) == 2
    np.testing.assert_array_equal(*found)
    assert sorted(map(tuple, found[0])) == sorted(map(tuple, rows.astype(np.float32)))


def test_votes_that_were_cast_belong_to_their_rows(tmp_path):
    public = tmp_path / "public.csv"
    public.write_text("a,b\n0.1,0.2\n0.3,0.4\n")
    config = own(tmp_path, "csv", public)
    train(config, output=tmp_path / "run", project="votes")
    train(config, output=tmp_path / "run", resume=True)
    public.write_text("a,b\n0.1,0.2\n0.3,0.5\n")
    with pytest.raises(InvalidInput, match=r"votes\.rows was .* and is now"):
        train(config, output=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "empty"),
        ("a,b\n", "no row below it"),
        ("a,c\n1,2\n", "unknown column"),
        ("a,b\n1,nan\n", "public.csv:2"),
        ("a,b\n1,inf\n", "public.csv:2"),
        ("a,b\n1,x\n", "public.csv:2"),
    ],
)
def test_bad_files_of_public_rows(tmp_path, content, says):
    (tmp_path / "public.csv").write_text(content)
    with pytest.raises(InvalidInput, match=says):
        from_config(config_of(own(tmp_path, "csv", tmp_path / "public.csv")))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"rows": np.zeros((3, 2))}, "unknown array"),
        ({"features": np.zeros((0, 2))}, "public rows is empty"),
        ({"features": np.zeros((3, 5))}, "a public row has shape"),
        ({"features": np.full((3, 2), np.nan)}, r"public rows\[0, 0\] is nan"),
        ({"features": np.array([["a", "b"]])}, "must be numbers"),
    ],
)
def test_bad_arrays_of_public_rows(tmp_path, arrays, says):
    np.savez(tmp_path / "public.npz", **arrays)
    with pytest.raises(InvalidInput, match=says):
        from_config(config_of(own(tmp_path, "npz", tmp_path / "public.npz")))


def test_rows_of_your_own_data_are_never_set_aside(tmp_path):
    sections = own(tmp_path, "csv", tmp_path / "public.csv")
    sections["data"] = {
        key: value for key, value in sections["data"].items() if key != "public_path"
    } | {"public_share": 0.2}
    with pytest.raises(InvalidInput, match="would make rows of your own data public"):
        from_config(config_of(sections))


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "changes", "says"),
    [
        ("data", {"public_share": None}, "votes on public rows, but the data has none"),
        ("data", {"public_share": 0.0}, "public_share in .* must be a number above 0 and below 1"),
        ("data", {"public_share": 1.0}, "public_share"),
        ("data", {"public_share": math.nan}, "public_share"),
        (
            "data",
            {"public_path": "public.csv"},
            "public_path is for your own data .* set part of the data set aside with public_share",
        ),
        ("data", {"public_share": 1e-4}, "public_share must set some rows aside"),
        ("votes", {"queries": 0}, "queries in .* must be a whole number of at least 1"),
        ("votes", {"queries": 2.5}, "queries"),
        (
            "votes",
            {"queries": 73},
            "queries must be from 1 to the number of public rows, 72, got 73",
        ),
        ("votes", {"lr": math.nan}, "lr"),
        ("votes", {"lr": -0.1}, "lr"),
        ("votes", {"epochs": 0}, "epochs"),
        ("votes", {"batch_size": 0}, "batch_size"),
        ("votes", {"quer": 4}, "did you mean 'queries'"),
        ("shape", {"lus": 0.3}, "lus thins out updates"),
        ("privacy", {"clipping": "per-layer"}, "clipping per layer is for updates"),
    ],
)
def test_bad_values_are_refused_in_one_line(voting, section, changes, says):
    changed = {
        key: value
        for key, value in (voting.get(section, {}) | changes).items()
        if value is not None
    }
    with pytest.raises(InvalidInput, match=says) as refused:
        from_config(config_of(voting | {section: changed}))
    assert "\n" not in str(refused.value)


def test_labels_that_will_drown_in_noise_are_announced(voting):
    with pytest.warns(
        FedspendWarning,
        match=r"deviation of \d+% with 18 rows per round; ask about at most \d+ with votes",
    ):
        from_config(config_of(voting))
    voting["privacy"]["groups"] = [{"epsilon": 0.5, "share": 1}]
    with pytest.warns(FedspendWarning, match="one is too many"):
        from_config(config_of(voting))


def test_few_queries_are_not_warned_of(voting):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_config(config_of(voting | {"votes": {"queries": 1}}))


def test_arrays_have_no_public_rows_to_vote_on(voting):
    setup = from_config(config_of(voting))
    with pytest.raises(InvalidInput, match="needs public rows"):
        train(
            clients=[],
            model=setup.module,
            plan=setup.plan,
            test=([[0.0] * 6], [0]),
            lr=0.1,
            batch_size=8,
            local_steps=1,
        )


# --- what people see ------------------------------------------------------------------------------


def test_the_report_speaks_of_votes(voting, tmp_path):
    from fedspend.report.html import write_report

    train(voting, output=tmp_path / "run")
    write_report([tmp_path / "run"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for words in (
        "Inside the votes",
        "Agreement",
        "Labels changed by noise",
        "Noise on vote shares",
        "not protected",
    ):
        assert words in page
    for words in ("Update norms", "Clipped updates", "Noise of the averaged update"):
        assert words not in page
    assert (
        json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["votes.queries"] == 18
    )


def test_compare_takes_votes_beside_updates(voting, tmp_path):
    from fedspend.configuration.config import load_config
    from fedspend.runs.comparison import curves_of_run

    voting["train"]["rounds"] = 2
    file = write_toml(tmp_path / "config.toml", voting)
    for method in ("dp-fedavg", "ae-dpfl"):
        config = load_config(file, [f"method.name={method}"])
        assert len(curves_of_run(config, 5)["accuracy"]) == 2
