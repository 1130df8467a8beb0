"""Answers: everyone who was asked is counted once or discarded once, and nothing from outside is
taken on trust.
"""

import math
import re

import numpy as np
import pytest
import torch
from boundary import answer, client_task, replies, tasks
from hypothesis import given
from hypothesis import strategies as st

from fedspend.client.contribution import Remarks, Reply
from fedspend.noise.grid import Grid
from fedspend.noise.randomness import Randomness
from fedspend.server.answers import NO_ANSWER, Tally, gather

SIZE = 4
HALF = np.full(SIZE, 0.25)  # of norm 1/2


def asked(clients=3, clip=1.0, **shared):
    return tasks(np.full(clients, clip), SIZE, **shared)


def one(reply, clip=1.0, **shared):
    """The answers of a round in which client 0 alone was asked, and this came back from outside."""
    return gather(asked(1, clip, **shared), [reply], SIZE, checked=True)


@given(st.data())
def test_everyone_asked_is_in_exactly_one_of_answered_and_discarded(data):
    """Whatever comes back: in any order, twice, from strangers, for other rounds, of any shape, or
    not at all.
    """
    clients = data.draw(st.integers(0, 6))
    kinds = {
        "good": lambda who: answer(who, HALF),
        "late": lambda who: answer(who, HALF, round=2),
        "long": lambda who: answer(who, HALF * 100),
        "short": lambda who: answer(who, HALF[:3]),
        "nan": lambda who: answer(who, HALF * math.nan),
        "bit": lambda who: answer(who, HALF, bit=0.5),
    }
    some = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([*kinds, "discard"])), max_size=20)
    tally, first = Tally(asked(clients), SIZE, checked=True), {}
    for who, kind in data.draw(some):
        if kind != "late":  # which is ignored
            first.setdefault(who, kind)
        tally.discard(str(who), "it is too slow") if kind == "discard" else tally.add(
            kinds[kind](who)
        )
    answers = tally.answers()
    everybody = [str(n) for n in range(clients)]
    assert sorted([*answers.answered, *answers.discarded]) == everybody, (
        "in one of the two, and once"
    )
    counted = [n for n in range(clients) if first.get(n) in ("good", "long")]
    assert sorted(answers.answered) == [str(n) for n in counted], (
        "what came first from a client decides"
    )
    wanted = sum(
        (HALF * (2 * (1 - 1e-6) if first[n] == "long" else 1) for n in counted), np.zeros(SIZE)
    )
    np.testing.assert_allclose(answers.total, wanted, rtol=1e-12)
    assert all(answers.discarded[who] == NO_ANSWER for who in everybody if int(who) not in first)


def test_a_late_answer_of_another_round_neither_counts_nor_stands_in_the_way():
    late, good = answer(0, HALF * 2, round=3), answer(0, HALF)
    for order in ([late, good], [good, late]):
        answers = gather(asked(1), order, SIZE, checked=True)
        np.testing.assert_array_equal(answers.total, HALF)
        assert "round 4" in answers.reports["0"]
        assert answers.received_variance == 0
    assert gather(asked(1), [late], SIZE, checked=True).discarded == {"0": NO_ANSWER}


@given(st.permutations(range(5)), st.integers(0, 5))
def test_received_noise_is_that_of_those_who_answered(order, answering):
    some = asked(5, own_deviation=0.7)
    answers = gather(some, [answer(n, HALF) for n in order[:answering]], SIZE, checked=True)
    assert answers.received_variance == pytest.approx(answering * 0.7**2, rel=1e-12)
    assert answers.answered == tuple(str(n) for n in order[:answering])
    assert len(answers.discarded) == 5 - answering


def test_a_second_answer_is_reported_and_not_added():
    answers = gather(
        asked(2), [answer(0, HALF), answer(0, HALF * 2), answer(1, HALF)], SIZE, checked=True
    )
    np.testing.assert_array_equal(answers.total, 2 * HALF)
    assert answers.answered == ("0", "1")
    assert "twice" in answers.reports["0"]
    assert not answers.discarded


def test_a_good_answer_after_a_bad_one_does_not_count_either():
    """Else a client could try until it gets something through."""
    answers = gather(asked(1), [answer(0, HALF * math.nan), answer(0, HALF)], SIZE, checked=True)
    assert not answers.total.any()
    assert answers.discarded == {"0": "its vector is not finite"}


def test_a_stranger_is_reported_and_not_added():
    answers = gather(asked(1), [answer(9, HALF), answer(0, HALF)], SIZE, checked=True)
    np.testing.assert_array_equal(answers.total, HALF)
    assert "without being asked" in answers.reports["9"]
    assert "9" not in answers.answered
    assert "9" not in answers.discarded


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (answer(0, HALF[:3]), r"shape \(3,\)"),
        (answer(0, HALF[None]), "shape"),
        (answer(0, [0.1, math.nan, 0, 0]), "not finite"),
        (answer(0, [0.1, math.inf, 0, 0]), "not finite"),
        (answer(0, HALF, bit=0.5), "bit"),
    ],
)
def test_answers_that_cannot_be_are_discarded_and_say_why(reply, told):
    answers = one(reply)
    assert not answers.total.any()
    assert not answers.answered
    assert re.search(told, answers.discarded["0"])
    assert answers.received_variance == 0


def test_an_answer_of_another_run_is_ignored():
    """It is late, or was sent again. Its noise was released once already: in a second sum the two
    releases would share it.
    """
    first, second = (asked(1, own_deviation=0.5, run=run) for run in ("this one", "another"))
    made = replies(first, torch.ones(1, SIZE))
    assert gather(first, made, SIZE, checked=True).answered == ("0",)
    answers = gather(second, made, SIZE, checked=True)
    assert not answers.total.any()
    assert "for run 'this one'" in answers.reports["0"]
    assert answers.discarded == {"0": NO_ANSWER}
    assert answers.received_variance == 0
    assert not answers.total.any()


def test_a_vector_that_is_not_float64_is_discarded():
    reply = answer(0, HALF)
    object.__setattr__(reply.contribution, "vector", HALF.astype(np.float32))
    assert "float32" in one(reply).discarded["0"]


@pytest.mark.parametrize("bit", [None, 0.25, -1.0, 7.0, math.nan, math.inf])
def test_bits_that_cannot_be_are_discarded(bit):
    """A bit of 7 would move the sum fourteen times as far as was accounted."""
    answers = one(answer(0, HALF, bit=bit), bit=True)
    assert answers.bits == 0
    assert "bit" in answers.discarded["0"]


def test_bits_that_can_be_are_added():
    answers = gather(
        asked(3, bit=True),
        [answer(n, HALF, bit=b) for n, b in enumerate((0.5, 0.5, -0.5))],
        SIZE,
        checked=True,
    )
    assert answers.bits == 0.5


@given(st.floats(1e-6, 1e300), st.floats(1e-3, 1e3))
def test_whatever_comes_under_central_noise_is_within_the_clip(length, clip):
    answers = one(answer(0, [length, -length, length, length]), clip)
    assert answers.answered == ("0",)
    assert np.linalg.norm(answers.total) <= clip * (1 + 1e-9)
    assert ("clipped again" in answers.reports.get("0", "")) == (2 * length > clip * (1 + 1e-9))


def test_a_vector_that_is_too_long_is_clipped_again_and_reported():
    answers = one(answer(0, [3.0, 4.0, 0, 0]))
    np.testing.assert_allclose(answers.total, np.array([0.6, 0.8, 0, 0]), rtol=1e-5)
    assert np.linalg.norm(answers.total) <= 1
    assert answers.reports["0"] == "its norm was 5, above its clip 1; it was clipped again"


def test_an_honest_vector_at_its_clip_is_left_as_it_is():
    """What a client has clipped must not be changed or reported for a last bit."""
    update = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 100
    task = client_task(1000, 0.7)
    (reply,) = replies([task], [update])
    answers = gather([task], [Reply(reply.contribution)], 1000, checked=True)
    np.testing.assert_array_equal(answers.total, reply.contribution.vector)
    assert not answers.reports


def test_an_infinite_clip_bounds_nothing():
    answers = one(answer(0, HALF * 1e200), math.inf)
    np.testing.assert_array_equal(answers.total, HALF * 1e200)
    assert not answers.reports


# --- on the grid ---

GRID = Grid(2.0**-10, 24, SIZE)


def test_a_vector_off_the_grid_is_discarded():
    assert one(answer(0, [1.0, 2.5, 0, 0]), grid=GRID).discarded == {
        "0": "its vector is not on the grid"
    }


def test_a_vector_on_the_grid_that_is_too_long_is_discarded():
    """Scaled down it would not be whole numbers any more."""
    answers = one(answer(0, [1025.0, 0, 0, 0]), grid=GRID)
    assert not answers.total.any()
    assert "its norm is 1.00098, above its clip 1" in answers.discarded["0"]
    np.testing.assert_array_equal(
        one(answer(0, [1024.0, 0, 0, 0]), grid=GRID).total, [1024, 0, 0, 0]
    )


@pytest.mark.parametrize("on_grid", [False, True])
def test_under_distributed_noise_the_norm_says_nothing(on_grid):
    """An honest vector carries noise that is longer than its clip; clipped or discarded for that,
    noise would be missing.
    """
    grid = GRID if on_grid else None
    task = client_task(SIZE, 0.01, own_deviation=5.0, grid=grid)
    (reply,) = replies([task], [torch.ones(SIZE)], Randomness(1))
    step = GRID.step if on_grid else 1.0
    assert np.linalg.norm(reply.contribution.vector) * step > 1, "a hundred clips"
    answers = gather([task], [Reply(reply.contribution)], SIZE, checked=True)
    np.testing.assert_array_equal(answers.total, reply.contribution.vector)
    assert answers.answered == ("0",)
    assert not answers.reports
    assert answers.received_variance == 25.0


@pytest.mark.parametrize("value", [2.0**23 + 1, -(2.0**23) - 1, 1e300])
def test_a_vector_beyond_the_modulus_is_discarded(value):
    """Whole numbers that large are not exact in a sum, and what a client sends is taken modulo the
    grid's bits.
    """
    answers = one(answer(0, [value, 0, 0, 0]), grid=GRID, own_deviation=1.0)
    assert not answers.total.any()
    assert answers.discarded == {"0": "its vector exceeds the grid's 24 bits"}
    assert one(answer(0, [2.0**23 - 1, 0, 0, 0]), grid=GRID, own_deviation=1.0).answered == ("0",)


# --- on one machine ---


def test_inside_one_process_answers_are_taken_as_they_are():
    """They were bounded by the same code a moment ago."""
    answers = gather(asked(1), [answer(0, HALF * 100)], SIZE)
    np.testing.assert_array_equal(answers.total, HALF * 100)


def test_statistics_are_of_those_who_told():
    some = asked(3)
    told = [
        Reply(answer(n, HALF).contribution, Remarks(norm, norm > 1, why))
        for n, norm, why in ((0, 2.0, ""), (1, 0.0, "NaN"))
    ]
    found = gather(some, [*told, answer(2, HALF)], SIZE).statistics
    assert found.norms.tolist() == [2.0, 0.0]
    assert found.clipped.tolist() == [True, False]
    assert found.zeroed.tolist() == [False, True]
    assert found.active is None


def test_active_records_add_up_over_clients():
    counts = [np.array([3, 2]), np.array([4, 0])]
    told = [
        Reply(answer(n, HALF).contribution, Remarks(1.0, False, active=count))
        for n, count in enumerate(counts)
    ]
    assert gather(asked(2), told, SIZE).statistics.active.tolist() == [7, 2]


def test_nobody_asked_is_a_normal_round():
    answers = gather([], [], SIZE)
    assert not answers.total.any()
    assert (answers.answered, answers.discarded, answers.received_variance, answers.bits) == (
        (),
        {},
        0.0,
        0.0,
    )
