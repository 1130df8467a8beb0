"""Arrays and facts as bytes: there and back without a change, equal bytes for equal content, and
nothing but them is taken in.
"""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors.numpy import save

from fedspend.basics.tensors import pack, unpack
from fedspend.errors import InvalidInput

names = st.text(min_size=1, max_size=8).filter(
    lambda name: name != "__metadata__" and name.isprintable()
)
dtypes = st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8])
arrays = dtypes.flatmap(
    lambda dtype: arrays_of.arrays(
        dtype, arrays_of.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)
    )
)
floats = st.floats(allow_nan=False, allow_infinity=False)
facts = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), floats, st.text(max_size=10)),
    lambda some: st.one_of(
        st.lists(some, max_size=3), st.dictionaries(st.text(max_size=5), some, max_size=3)
    ),
    max_leaves=8,
)
contents = st.tuples(
    st.dictionaries(names, arrays, max_size=4),
    st.dictionaries(st.text(max_size=8), facts, max_size=4),
)


def same(left, right):
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


@given(contents)
def test_there_and_back(content):
    held, about = content
    found, told = unpack(pack(held, about), "this")
    assert told == about
    assert set(found) == set(held)
    assert all(same(found[name], held[name]) for name in held), (
        "to the last bit, NaN and signs of zero too"
    )


@pytest.mark.full
@given(contents, st.randoms())
def test_equal_content_gives_equal_bytes(content, dice):
    held, about = content
    order = list(held)
    dice.shuffle(order)
    # the same numbers, kept in another order
    copied = {name: np.asfortranarray(held[name].copy()) for name in order}
    assert pack(copied, json.loads(json.dumps(about))) == pack(held, about)


@given(contents, st.data())
def test_damaged_bytes_are_refused_in_one_line_or_are_whole(content, data):
    """Cut off, changed or lengthened anywhere: nothing but `InvalidInput` comes out."""
    body = pack(*content)
    kind, place = (
        data.draw(st.sampled_from(["cut", "changed", "longer"])),
        data.draw(st.integers(0, len(body) - 1)),
    )
    damaged = {
        "cut": body[:place],
        "changed": body[:place]
        + bytes([body[place] ^ data.draw(st.integers(1, 255))])
        + body[place + 1 :],
        "longer": body + data.draw(st.binary(min_size=1, max_size=9)),
    }[kind]
    told = None
    try:
        found, about = unpack(damaged, "the state of client 'north'", "restore it")
    except InvalidInput as refused:
        told = str(refused)
    if told is None:
        assert kind == "changed", "what is cut off or lengthened is never taken for whole"
        assert isinstance(found, dict)
        assert isinstance(about, dict)
    else:
        assert told == "the state of client 'north' is damaged; restore it"


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(body):
    with pytest.raises(InvalidInput, match="damaged; send it again"):
        unpack(body, "a task")


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"other": "1"},
        {"about": "[1]"},
        {"about": "3"},
        {"about": "{"},
        {"about": "[" * 100_000},
    ],
)
def test_blocks_without_facts_are_refused(metadata):
    body = save({"vector": np.zeros(3)}, metadata)
    with pytest.raises(InvalidInput, match="damaged"):
        unpack(body, "a task")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_facts_are_json_that_anybody_can_read(value):
    with pytest.raises(ValueError):
        pack({}, {"value": value})


def test_arrays_that_were_read_can_be_written_to():
    """Torch warns of arrays that it may not write to, and a client hands the model of a task to
    torch.
    """
    found, _ = unpack(pack({"parameters": np.ones(3, dtype=np.float32)}, {}), "a task")
    assert found["parameters"].flags.writeable
