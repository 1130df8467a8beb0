"""What travels through Flower arrives as it was, and nothing else is read."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from boundary import client_task
from flower.in_process import travelled, unasked
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedspend.client.contribution import Contribution
from fedspend.client.task import ClientTask, LocalTraining, RecordTerms
from fedspend.engines.flower import wire
from fedspend.errors import InvalidInput
from fedspend.noise.grid import Grid

ABOUT, ARRAYS = "fedspend.about", "fedspend.arrays"


def through(content: RecordDict) -> RecordDict:
    return travelled(unasked(7, content)).content


def same(a: ClientTask, b: ClientTask) -> bool:
    return a.to_bytes() == b.to_bytes()


def tasks() -> list[ClientTask]:
    odd = np.array([0.0, -0.0, np.float32(1e-45), np.nan, np.inf], dtype=np.float32)
    return [
        client_task(3, clip=math.inf),
        client_task(5, parameters=odd, run="run-1", plan="ab" * 32, bit=True, layers=(2, 3)),
        client_task(4, own_deviation=0.1, grid=Grid(0.5, 16, 4)),
        replace(client_task(3), coin=0.25),
        client_task(6, parameters=np.ones(4, dtype=np.float32), asked=np.array([3, 1])),
        client_task(3, training=LocalTraining(batch_size=8, epochs=2, momentum=0.9)),
        client_task(
            2,
            records=RecordTerms(np.array([0.5]), np.array([3.0]), np.array([1.0, 2.0]), 1.0, 2.0),
        ),
    ]


@pytest.mark.parametrize("number", range(len(tasks())))
def test_a_task_arrives_bit_for_bit(number):
    task = tasks()[number]
    arrived = wire.read_task(through(wire.task_content(task)))
    assert same(arrived, task)
    assert arrived.shared.parameters.flags.writeable


def test_the_arrays_of_a_round_are_shared():
    """What Flower stores under one id is sent to the SuperLink once."""
    one, other = client_task(5, number=1), client_task(5, number=2)
    shared = wire.arrays_of(one)
    contents = [wire.task_content(task, shared) for task in (one, other)]
    assert contents[0][ARRAYS].object_id == contents[1][ARRAYS].object_id
    assert [wire.read_task(through(content)).client for content in contents] == ["1", "2"]


@pytest.mark.parametrize("bits", [None, 16])
def test_a_contribution_arrives_bit_for_bit(bits):
    vector = np.array([3.0, -7.0, 0.0]) if bits else np.array([0.1, -1e-300, 5e300])
    sent = Contribution("north", 3, vector, 0.5, "run-1")
    arrived = wire.read_answer(through(wire.sent_content(sent.to_bytes(bits))))
    assert arrived.vector.dtype == np.float64
    assert arrived.vector.tobytes() == vector.tobytes()
    assert (arrived.client, arrived.round, arrived.bit, arrived.run) == ("north", 3, 0.5, "run-1")


@pytest.mark.parametrize("size", [0, 1, 3, 2**15, 2**15 + 1, 100_001])
def test_a_mask_changes_every_word_by_another_number(size):
    """Made in pieces, it is what it was in one: word n is changed by start + n step."""
    key, body = bytes(range(7, 23)), np.arange(4 * size, dtype=np.uint32).view(np.uint8)[: 4 * size]
    start, step = (int.from_bytes(half, "little") for half in (key[:8], key[8:]))
    words = [(start + n * (step | 1)) % 2**64 for n in range(-(-body.size // 8))]
    mask = np.array(words, dtype="<u8").view(np.uint8)[: body.size]
    masked = wire._changed(body, key)
    assert masked.tobytes() == (body ^ mask).tobytes()
    assert wire._changed(masked, key).tobytes() == body.tobytes()


@pytest.mark.parametrize("bits", [8, 13, 31, 32])
def test_whole_numbers_travel_modulo_the_grid(bits):
    half, vector = 2 ** (bits - 1), np.arange(-20_000.0, 20_001.0) * 2.0**17 + 1
    vector[:4] = half, -half, half - 1, -half - 1
    (sent,) = Contribution("north", 0, vector).parts(bits)[0].values()
    assert sent.dtype == np.int32
    assert sent.tolist() == [(int(x) + half) % (2 * half) - half for x in vector]


def test_greetings_arrive():
    for said in (wire.Hello(True, 10, 12, "0f", "squared", "a model"), wire.Refusal("account")):
        assert wire.read_greeting(type(said), through(wire.greeting_content(said))) == said
    me = wire.Introduction("north", "0.1.0", False, 10, "squared", "a model")
    assert wire.read_introduction(through(wire.greeting_content(me))) == me


def changed(content: RecordDict, **about) -> RecordDict:
    """The same message with other facts in its body."""
    body = json.loads(content[ABOUT]["body"])
    text = json.dumps({k: v for k, v in (body | about).items() if v != "drop"})
    return RecordDict(
        {ABOUT: ConfigRecord({**content[ABOUT], "body": text}), ARRAYS: content[ARRAYS]}
    )


def with_array(content: RecordDict, name: str, array: Array) -> RecordDict:
    arrays = ArrayRecord({**content[ARRAYS], name: array})
    return RecordDict({ABOUT: content[ABOUT], ARRAYS: arrays})


def forgeries() -> dict[str, RecordDict]:
    good = wire.task_content(client_task(3))
    about = dict(good[ABOUT])
    raw = "fedspend.raw"
    return {
        "nothing": RecordDict(),
        "another record": RecordDict({**good, "more": ConfigRecord()}),
        "records of another kind": RecordDict({ABOUT: good[ARRAYS], ARRAYS: good[ARRAYS]}),
        "another version": RecordDict(
            {ABOUT: ConfigRecord(about | {"wire": "fedspend wire 1"}), ARRAYS: good[ARRAYS]}
        ),
        "another kind": wire.greeting_content(wire.Hello(True, 1, 1, "")),
        "an unknown part": RecordDict(
            {ABOUT: ConfigRecord(about | {"seed": 4}), ARRAYS: good[ARRAYS]}
        ),
        "an unknown fact": changed(good, seed=4),
        "a fact too few": changed(good, number="drop"),
        "a number that is none": RecordDict(
            {
                ABOUT: ConfigRecord(
                    about | {"body": about["body"].replace('"clip_norm": 1.0', '"clip_norm": NaN')}
                ),
                ARRAYS: good[ARRAYS],
            }
        ),
        "a negative clip": changed(good, clip_norm=-1.0),
        "a coin that always falls": changed(good, coin=1.5),
        "a coin below 0": changed(good, coin=-0.1),
        "a coin that is a word": changed(good, coin="yes"),
        "a coin that is true": changed(good, coin=True),
        "no word on the coin": changed(good, coin="drop"),
        "not JSON": RecordDict(
            {ABOUT: ConfigRecord(about | {"body": "{" * 5000}), ARRAYS: good[ARRAYS]}
        ),
        "an unknown array": with_array(good, "seed", Array("float32", (1,), raw, b"1234")),
        "a short array": with_array(good, "parameters", Array("float32", (3,), raw, b"12345678")),
        "another type": with_array(good, "parameters", Array("float64", (3,), raw, bytes(24))),
        "an unknown type": with_array(good, "parameters", Array("object", (3,), raw, bytes(24))),
        "a pickle": with_array(
            good, "parameters", Array("float32", (3,), "numpy.ndarray", bytes(12))
        ),
        "a negative shape": with_array(good, "parameters", Array("float32", (-3,), raw, bytes(12))),
        "two dimensions": with_array(good, "parameters", Array("float32", (3, 1), raw, bytes(12))),
        "arrays of records": with_array(
            good, "records.rate", Array("float64", (1,), raw, bytes(8))
        ),
    }


@pytest.mark.parametrize("name", forgeries())
def test_a_forged_task_is_refused_in_one_line(name):
    with pytest.raises(InvalidInput) as refused:
        wire.read_task(forgeries()[name])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"round": "1"}, {"bit": "yes"}, {"client": 4}, {"run": "drop"}]
)
def test_a_forged_contribution_is_refused(change):
    good = wire.sent_content(Contribution("north", 0, np.zeros(3)).to_bytes())
    assert isinstance(wire.read_answer(good), Contribution)
    with pytest.raises(InvalidInput):
        wire.read_answer(changed(good, **change))


def test_a_refusal_is_one_of_a_few_words():
    with pytest.raises(InvalidInput):
        wire.read_answer(wire.greeting_content(wire.Refusal("row 17 says that Ann is ill")))


def test_an_answer_that_is_not_masked_is_refused():
    """There is one way to write an answer, so that what is behind it does not show."""
    good = wire.sent_content(Contribution("north", 0, np.zeros(3)).to_bytes())
    plain = Array("float64", (3,), "fedspend.raw", bytes(24))
    with pytest.raises(InvalidInput, match="an array of a kind that it may not have"):
        wire.read_answer(with_array(good, "vector", plain))


def test_sizes_count_the_content():
    content = wire.task_content(client_task(1000))
    assert 4000 < wire.size_of(content) < 4600
