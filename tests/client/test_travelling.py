"""Tasks and contributions as bytes: exact inverses over anything they may hold, and nothing else is
taken in.
"""

import json
import math

import numpy as np
import pytest
from boundary import client_task, record_task
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors.numpy import save

from fedspend.basics.tensors import unpack
from fedspend.client.contribution import Contribution
from fedspend.client.shaping import Shape
from fedspend.client.task import ClientTask, LocalTraining, RecordTerms, RoundTask
from fedspend.errors import InvalidInput
from fedspend.noise.grid import Grid
from fedspend.records import Terms
from fedspend.records.planning import plan_records
from fedspend.records.policies import Wanted

positive = st.floats(1e-300, 1e300)
counts = st.integers(0, 10**6)
ids = st.one_of(st.text(min_size=1, max_size=20), st.just("\ud800"))


def numbers(size, low=0.0, high=1.0):
    return arrays_of.arrays(np.float64, size, elements=st.floats(low, high))


@st.composite
def record_terms(draw):
    records, steps, by_norm = draw(st.integers(0, 5)), draw(st.integers(0, 4)), draw(st.booleans())
    return RecordTerms(
        rate=draw(numbers(records)),
        steps=draw(numbers(records, 0, 9)),
        batch=draw(numbers(steps, 0, 99)),
        clip=draw(positive),
        noise_multiplier=draw(positive),
        by_norm=by_norm,
        norm_budget=draw(numbers(records, 0, 50)) if by_norm else None,
    )


@st.composite
def tasks(draw):
    size, votes = draw(st.integers(1, 12)), draw(st.booleans())
    parameters = draw(arrays_of.arrays(np.float32, draw(st.integers(0, 9)) if votes else size))
    split = draw(st.integers(0, size - 1))
    training = LocalTraining(
        batch_size=draw(st.integers(1, 1000)),
        **{draw(st.sampled_from(["steps", "epochs"])): draw(st.integers(0, 1000))},
        momentum=draw(st.floats(0, 1)),
        shape=Shape(draw(st.floats(0, 10)), draw(st.floats(0, 0.99))),
    )
    shared = RoundTask(
        round=draw(counts),
        parameters=parameters,
        training=training,
        lr=draw(positive),
        size=size,
        run=draw(st.text(max_size=9)),
        plan=draw(st.text(max_size=9)),
        layers=draw(st.sampled_from([None, (size,), (split, size - split) if split else (size,)])),
        grid=draw(
            st.one_of(st.none(), st.builds(Grid, positive, st.integers(8, 32), st.just(size)))
        ),
        own_deviation=draw(st.one_of(st.just(0.0), positive)),
        bit=draw(st.booleans()),
        asked=draw(arrays_of.arrays(np.int64, draw(st.sampled_from([1, size])))) if votes else None,
    )
    clip = draw(st.one_of(st.just(math.inf), st.just(0.0), positive))
    return ClientTask(
        draw(ids), draw(counts), clip, shared, draw(st.one_of(st.none(), record_terms()))
    )


def plain(value):
    """Any part of a task as something that can be compared:
    arrays by their kind and their bytes.
    """
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if hasattr(value, "__dataclass_fields__"):
        return type(value), {
            name: plain(getattr(value, name)) for name in value.__dataclass_fields__
        }
    return type(value), value


@pytest.mark.full
@given(tasks())
def test_a_task_survives_its_journey_to_the_last_bit(task):
    body = task.to_bytes()
    again = ClientTask.from_bytes(body)
    assert plain(again) == plain(task)
    assert again.to_bytes() == body, "equal tasks are equal bytes"


@pytest.mark.full(only=["rpdp"])
@pytest.mark.parametrize("method", ["rpdp", "filter", "by norm"])
def test_tasks_of_real_plans_survive_too(method):
    wanted = (
        Wanted(method="filter", charge="norm") if method == "by norm" else Wanted(method=method)
    )
    plan = plan_records(
        [0.3, 0.5, 1.0, 2.0],
        [0, 0, 1, 1],
        Terms(1e-3, 3, 4, 1.0, 6.0),
        clients=["a", "b"],
        wanted=wanted,
    )
    for round in range(3):
        task = record_task(plan, 8, round, number=1)
        assert plain(ClientTask.from_bytes(task.to_bytes())) == plain(task)
        assert task.records.rate.size == 2, "its own records, and nobody else's"


vectors = st.integers(0, 12).flatmap(lambda size: arrays_of.arrays(np.float64, size))


@pytest.mark.full
@given(ids, counts, vectors, st.sampled_from([None, -0.5, 0.0, 0.5]))
def test_a_contribution_survives_its_journey_to_the_last_bit(client, round, vector, bit):
    sent = Contribution(client, round, vector, bit, "a run")
    assert plain(Contribution.from_bytes(sent.to_bytes())) == plain(sent)


def test_only_what_came_as_whole_numbers_is_taken_for_whole():
    """A vector of doubles is looked at, whatever it says of itself."""
    vector = np.array([1.0, -3.0, 0.0])
    assert Contribution.from_bytes(Contribution("a", 0, vector).to_bytes(24)).whole
    halves = Contribution("a", 0, vector / 2, whole=True)
    assert not Contribution.from_bytes(halves.to_bytes()).whole


@pytest.mark.full
@given(st.sampled_from([8, 16, 31, 32]), st.lists(st.integers(-(2**40), 2**40), max_size=9))
def test_on_the_grid_whole_numbers_travel_modulo_its_bits_and_take_half_the_room(bits, values):
    sent = Contribution("a", 3, np.array(values, dtype=np.float64))
    again = Contribution.from_bytes(sent.to_bytes(grid_bits=bits)).vector
    assert again.dtype == np.float64
    assert ((again - sent.vector) % 2**bits == 0).all()
    assert (np.abs(again + 0.5) < 2 ** (bits - 1)).all()
    inside = np.abs(sent.vector + 0.5) < 2 ** (bits - 1)
    np.testing.assert_array_equal(again[inside], sent.vector[inside])
    long = Contribution("a", 3, np.zeros(10_000))
    assert len(long.to_bytes(grid_bits=bits)) < 0.51 * len(long.to_bytes())


# --- what is no task and no contribution ---


def taken_in(kind, body):
    """What the bytes are read as; None if they are refused, and then in one line."""
    told = None
    try:
        return kind.from_bytes(body)
    except InvalidInput as refused:
        told = str(refused)
    assert "\n" not in told
    return None


@pytest.mark.full
@settings(max_examples=300)
@given(tasks(), st.data())
def test_damaged_tasks_are_refused_or_whole(task, data):
    body = task.to_bytes()
    place, flip = data.draw(st.integers(0, len(body) - 1)), data.draw(st.integers(1, 255))
    for damaged in (body[:place], body[:place] + bytes([body[place] ^ flip]) + body[place + 1 :]):
        found = taken_in(ClientTask, damaged)
        if found is not None:
            assert not math.isnan(found.clip_norm)
            assert found.to_bytes(), "what is taken in is a task in every part"


@pytest.mark.full
@settings(max_examples=200)
@given(st.binary(max_size=120), ids, vectors, st.data())
def test_damaged_contributions_are_refused_or_whole(foreign, client, vector, data):
    body = Contribution(client, 1, vector, 0.5).to_bytes()
    place, flip = data.draw(st.integers(0, len(body) - 1)), data.draw(st.integers(1, 255))
    for damaged in (
        foreign,
        body[:place],
        body[:place] + bytes([body[place] ^ flip]) + body[place + 1 :],
    ):
        found = taken_in(Contribution, damaged)
        if found is not None:
            assert found.vector.dtype == np.float64
            assert isinstance(found.client, str)


def forged(body, changes, arrays=None):
    """The same block with other facts (a dotted path -> what it is set to) or arrays; NaN and
    infinity can be written, too.
    """
    held, about = unpack(body, "it")
    for path, value in changes.items():
        *folders, last = path.split(".")
        place = about
        for folder in folders:
            place = place[folder]
        if value is KeyError:
            del place[last]
        else:
            place[last] = value
    held = {name: array for name, array in (held | (arrays or {})).items() if array is not None}
    return save(held, {"about": json.dumps(about)})


def whole_task():
    terms = RecordTerms(
        np.ones(2), np.ones(2), np.ones(3), 1.0, 2.0, by_norm=True, norm_budget=np.ones(2)
    )
    return client_task(4, records=terms, grid=Grid(0.5, 16, 4), layers=(1, 3))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", "fedspend task 2"),
        ("format", KeyError),
        ("client", None),
        ("client", ""),
        ("client", KeyError),
        ("number", math.inf),
        ("number", 1.5),
        ("number", -1),
        ("number", True),
        ("clip_norm", math.nan),
        ("clip_norm", -1.0),
        ("clip_norm", "1"),
        ("clip_norm", 10**400),
        ("shared", [1]),
        ("shared.round", "x"),
        ("shared.round", -1),
        ("shared.size", 0),
        ("shared.size", 5),
        ("shared.size", 10**400),
        ("shared.lr", math.nan),
        ("shared.own_deviation", math.nan),
        ("shared.own_deviation", -1.0),
        ("shared.own_deviation", KeyError),
        ("shared.bit", "no"),
        ("shared.run", 3),
        ("shared.layers", 5),
        ("shared.layers", ["a"]),
        ("shared.layers", [1, 2]),
        ("shared.layers", [-1, 5]),
        ("shared.unknown", 1),
        ("shared.bit", KeyError),
        ("training.momentum", KeyError),
        ("records.by_norm", KeyError),
        ("training.batch_size", "a"),
        ("training.batch_size", 0),
        ("training.epochs", 3),
        ("training.steps", 1.5),
        ("training.momentum", math.nan),
        ("training.shape", None),
        ("training.shape.lus", 1.0),
        ("training.shape.blur", math.nan),
        ("grid", [1]),
        ("grid.step", math.nan),
        ("grid.step", 0.0),
        ("grid.bits", "many"),
        ("grid.dimension", 3),
        ("records", 5),
        ("records.clip", math.nan),
        ("records.clip", 0.0),
        ("records.noise_multiplier", math.nan),
        ("records.noise_multiplier", -1.0),
        ("records.by_norm", 1),
    ],
    ids=lambda part: str(part)[:20],
)
def test_tasks_that_no_client_can_work_with_are_refused_in_one_line(path, value):
    """Above all those that would switch off a bound or a noise: nothing is above NaN, so nothing
    would be clipped.
    """
    body = whole_task().to_bytes()
    assert ClientTask.from_bytes(forged(body, {"clip_norm": None})).clip_norm == math.inf, (
        "no bound, and it says so"
    )
    with pytest.raises(InvalidInput, match="task") as refused:
        ClientTask.from_bytes(forged(body, {path: value}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "arrays",
    [
        {"parameters": None},
        {"parameters": np.zeros(4)},
        {"parameters": np.zeros((2, 2), dtype=np.float32)},
        {"asked": np.zeros(0, dtype=np.int64)},
        {"asked": np.zeros(2)},
        {"asked": np.zeros(3, dtype=np.int64)},
        {"records.rate": None},
        {"records.rate": np.ones(3)},
        {"records.rate": np.array([0.5, math.nan])},
        {"records.batch": np.ones((3, 1))},
        {"records.norm_budget": None},
        {"records.norm_budget": np.array([1.0, -1.0])},
        {"records.unknown": np.ones(2)},
    ],
)
def test_tasks_with_arrays_that_do_not_fit_are_refused_in_one_line(arrays):
    with pytest.raises(InvalidInput, match="task") as refused:
        ClientTask.from_bytes(forged(whole_task().to_bytes(), {}, arrays))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "arrays"),
    [
        ({"format": "fedspend task 1"}, {}),
        ({"client": 3}, {}),
        ({"client": KeyError}, {}),
        ({"run": KeyError}, {}),
        ({"run": 7}, {}),
        ({"round": 1.0}, {}),
        ({"round": True}, {}),
        ({"bit": 1}, {}),
        ({"bit": "0.5"}, {}),
        ({}, {"vector": None}),
        ({}, {"vector": np.zeros((2, 2))}),
        ({}, {"vector": np.zeros(4, dtype=np.float32)}),
        ({}, {"more": np.zeros(4)}),
    ],
)
def test_contributions_that_do_not_fit_are_refused_in_one_line(changes, arrays):
    body = Contribution("a", 1, np.zeros(4), 0.5).to_bytes()
    assert Contribution.from_bytes(forged(body, {})).bit == 0.5
    with pytest.raises(InvalidInput, match="contribution") as refused:
        Contribution.from_bytes(forged(body, changes, arrays))
    assert "\n" not in str(refused.value)


def test_a_task_is_no_contribution_and_the_other_way_round():
    with pytest.raises(InvalidInput, match="not a contribution of this version"):
        Contribution.from_bytes(client_task(3).to_bytes())
    with pytest.raises(InvalidInput, match="not a task of this version"):
        ClientTask.from_bytes(Contribution("a", 1, np.zeros(3)).to_bytes())


def test_a_task_says_nothing_that_could_predict_noise():
    """Randomness does not travel: neither a seed nor a source of it is among the facts."""
    _, about = unpack(client_task(3, own_deviation=1.0).to_bytes(), "it")
    told = json.dumps(about)
    assert not any(word in told for word in ("seed", "random", "source"))
