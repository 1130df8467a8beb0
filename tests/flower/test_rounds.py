"""Rounds on a grid in this process, with everything that can go wrong on the way."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from contracts.workshop import Data, logistic, tasks_for
from flower.in_process import Fault, cut, edited, engine_on, grid_of, unasked

from fedspend.client.contribution import Contribution
from fedspend.client.task import LocalTraining
from fedspend.engines.base import Elsewhere, Patience
from fedspend.engines.flower.engine import FlowerEngine
from fedspend.engines.flower.line import TransportFailed
from fedspend.engines.flower.wire import HELLO, TASK, Refusal, greeting_content, sent_content
from fedspend.engines.local import local
from fedspend.errors import InvalidInput, Refused
from fedspend.noise.grid import Grid
from fedspend.noise.randomness import Randomness
from fedspend.server.answers import gather
from fedspend.server.mechanism import Gaussian, Sum

STEPS = LocalTraining(batch_size=8, steps=3)
CLIENTS = (1, 2, 3, 4, 5)
SIZE = 39


def work(**changes):
    torch.manual_seed(0)
    made = Data(sizes=(4, 9, 20, 3, 12, 8)).work(logistic())
    return replace(made, **changes)


def round_of(some, clients=CLIENTS, clip=0.5, **shared):
    start = torch.nn.utils.parameters_to_vector(some.module.parameters()).detach()
    terms = {"lr": 0.2, "clips": np.full(6, clip), "run": "run-1", "plan": "p"} | shared
    return tasks_for(start, list(clients), STEPS, **terms)


def played(faults=None, some=None, patience=None, tasks=None, grid=None):
    """One round on a grid with these faults: its answers, and the grid."""
    some = some or work()
    grid = grid or grid_of(some, faults=faults or {})
    engine = engine_on(some, grid, **({"deadline": 60.0, "retries": 2} | (patience or {})))
    tasks = round_of(some) if tasks is None else tasks
    return gather(tasks, engine.run(tasks), SIZE, checked=True), grid


def alone(clients=CLIENTS, some=None, **shared):
    """The same round on one machine."""
    some = some or work()
    tasks = round_of(some, clients, **shared)
    return gather(tasks, local(some, 0).run(tasks), SIZE)


def without(*missing):
    return tuple(client for client in CLIENTS if str(client) not in missing)


def equal(a, b):
    return bool(np.array_equal(a.total, b.total))


def test_a_round_ends_with_the_bits_of_the_local_engine():
    answers, grid = played()
    assert equal(answers, alone())
    assert answers.answered == tuple(map(str, CLIENTS))
    assert not answers.reports
    assert sorted(kind for kind, _, _ in grid.sent).count(TASK) == 5


def test_late_answers_do_not_change_the_order_of_a_simulated_sum():
    answers, _ = played({"1": Fault(delay=9.0), "2": Fault(delay=4.0), "4": Fault(delay=1.0)})
    assert answers.answered == tuple(map(str, CLIENTS))
    assert equal(answers, alone())


def test_a_real_run_adds_up_as_answers_come():
    real = work(randomness=Randomness(11, "os"))
    grid = grid_of(real, faults={"1": Fault(delay=9.0)})
    for number, place in enumerate(grid.places.values()):
        place.key = f"key {number}".encode()
    keys = {place.node.client: place.key.decode() for place in grid.places.values()}
    there = Elsewhere(grid, Patience(60.0), keys, plan="a root")
    engine = FlowerEngine(replace(real, elsewhere=there), grid.clock)
    tasks = round_of(real)
    answers = gather(tasks, engine.run(tasks), SIZE, checked=True)
    assert answers.answered == ("2", "3", "4", "5", "1")
    assert np.allclose(answers.total, alone().total, rtol=0, atol=1e-12)
    assert engine.traffic.seconds >= 9
    assert 5 * 4 * SIZE < engine.traffic.sent < 5 * (4 * SIZE + 800)
    assert 5 * 8 * SIZE < engine.traffic.received < 5 * (8 * SIZE + 200)


def test_who_is_lost_is_topped_up():
    answers, grid = played({"2": Fault(drop=True)})
    assert equal(answers, alone(without("2")))
    assert answers.discarded == {"2": "it did not answer within 60 seconds"}
    assert sum(kind == TASK for kind, _, _ in grid.sent) == 5 + 2  # asked twice again


def test_an_answer_after_the_deadline_does_not_count():
    answers, grid = played({"2": Fault(delay=61.0)}, patience={"retries": 0})
    assert set(answers.discarded) == {"2"}
    assert equal(answers, alone(without("2")))
    assert grid.clock.now() < 61


def test_a_lost_answer_is_asked_for_again_and_comes_with_the_same_bytes():
    shared = {"own_deviation": 0.3}
    some = work()
    answers, grid = played({"2": Fault(drop=True, times=1)}, some, tasks=round_of(some, **shared))
    assert equal(answers, alone(**shared))
    assert sum(kind == TASK for kind, _, _ in grid.sent) == 6


def test_noise_is_not_drawn_twice_for_one_task():
    """With randomness from the system, a second answer would average the noise away."""
    real = work(randomness=Randomness(0, "os"))
    node = next(place.node for place in grid_of(real).places.values() if place.node.client == "2")
    from fedspend.engines.flower.wire import read_answer, task_content

    (task,) = round_of(real, [2], own_deviation=1.0)
    first, again = (read_answer(node.task(task_content(task))) for _ in range(2))
    assert first.vector.tobytes() == again.vector.tobytes()
    (later,) = round_of(real, [2], own_deviation=1.0, round=1)
    assert read_answer(node.task(task_content(later))).vector.tobytes() != first.vector.tobytes()
    assert read_answer(node.task(task_content(task))) == Refusal("replayed")
    (other,) = round_of(real, [2], own_deviation=0.1, round=1)
    assert read_answer(node.task(task_content(other))) == Refusal("changed")


def test_an_answer_that_an_older_version_kept_is_sent_again(monkeypatch):
    """A node that is updated in mid-round does not draw its noise again, nor decline."""
    from fedspend.client import answering
    from fedspend.engines.flower.wire import read_answer, task_content

    real = work(randomness=Randomness(0, "os"))
    node = next(place.node for place in grid_of(real).places.values() if place.node.client == "2")
    (task,) = round_of(real, [2], own_deviation=1.0)
    with monkeypatch.context() as older:
        older.setattr(answering, "FORMAT", answering.OLD_FORMAT)
        older.setattr(answering, "_digest", answering._old_digest)
        first = read_answer(node.task(task_content(task)))
    again = read_answer(node.task(task_content(task)))
    assert again.vector.tobytes() == first.vector.tobytes()
    (other,) = round_of(real, [2], own_deviation=0.1)
    assert read_answer(node.task(task_content(other))) == Refusal("changed")


def test_duplicates_count_once():
    answers, _ = played({"2": Fault(twice=True), "5": Fault(twice=True)})
    assert equal(answers, alone())
    assert answers.reports["2"] == "it answered twice; the first answer counts"


def test_a_damaged_answer_is_asked_for_again():
    answers, _ = played({"2": Fault(change=cut, times=1)})
    assert equal(answers, alone())
    answers, _ = played({"2": Fault(change=cut)})
    assert equal(answers, alone(without("2")))
    assert "wrong length" in answers.discarded["2"]


def test_an_error_of_flower_is_not_an_answer():
    answers, _ = played({"2": Fault(error=True, times=2)})
    assert equal(answers, alone())
    answers, grid = played({"2": Fault(error=True)})
    assert answers.discarded == {"2": "Flower reports error 1 from its node"}
    assert grid.clock.now() < 30  # it is not waited for until the deadline


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: replace(c, vector=c.vector * math.nan), "not finite"),
        (lambda c: replace(c, vector=c.vector[:-1]), "shape"),
        (lambda c: replace(c, vector=np.append(c.vector, 0.0)), "shape"),
        (lambda c: replace(c, bit=0.5), "bit"),
        (lambda c: replace(c, client="3"), "its node answered as '3'"),
        (lambda c: replace(c, client="nobody"), "its node answered as 'nobody'"),
    ],
    ids=["nan", "short", "long", "bit", "another's name", "a stranger's name"],
)
def test_an_answer_that_is_not_one_counts_for_nobody(change, why):
    answers, _ = played({"2": edited(change)})
    assert equal(answers, alone(without("2")))
    assert why in answers.discarded["2"]
    assert "3" in answers.answered  # nobody speaks for another, or shuts another out


@pytest.mark.parametrize("change", [{"round": 7}, {"run": "run-0"}])
def test_an_answer_for_another_round_or_run_is_ignored_and_reported(change):
    answers, _ = played({"2": edited(lambda c: replace(c, **change))})
    assert equal(answers, alone(without("2")))
    assert "which was ignored" in answers.reports["2"]


def test_strangers_are_reported():
    some = work()
    forged = sent_content(Contribution("2", 0, np.full(SIZE, 9.0), None, "run-1").to_bytes())
    grid = grid_of(some)
    engine = engine_on(some, grid)
    task_id = "message-13"  # that of client 2: after six hellos, six replies and client 1's task
    grid.extra = [unasked(99, forged), unasked(99, forged, task_id)]
    tasks = round_of(some)
    answers = gather(tasks, engine.run(tasks), SIZE, checked=True)
    node = next(node for node, place in grid.places.items() if place.node.client == "2")
    assert (TASK, node, task_id) in grid.sent
    assert equal(answers, alone())
    assert answers.reports == {"node 99": "it answered without being asked"}


def long(contribution):
    return replace(contribution, vector=contribution.vector * 0 + 1.0)


def test_central_noise_clips_a_long_answer_again_and_reports_it():
    answers, _ = played({"2": edited(long)})
    assert "clipped again" in answers.reports["2"]
    moved = np.linalg.norm(answers.total - alone(without("2")).total)
    assert 0.499 < moved <= 0.5


def test_a_long_answer_on_the_grid_is_discarded():
    some, shared = work(), {"grid": Grid(2.0**-10, 24, SIZE)}
    answers, _ = played({"2": edited(long_on_grid, 24)}, some, tasks=round_of(some, **shared))
    assert "above its clip" in answers.discarded["2"]
    assert equal(answers, alone(without("2"), **shared))


def long_on_grid(contribution):
    return replace(contribution, vector=contribution.vector * 0 + 600.0)


def test_distributed_noise_neither_clips_nor_discards():
    """Its norm holds noise that was counted as received: the sum would be short of it."""
    some, shared = work(), {"own_deviation": 0.3}
    answers, _ = played({"2": edited(long)}, some, tasks=round_of(some, **shared))
    assert "2" in answers.answered
    assert not answers.reports
    assert answers.received_variance == pytest.approx(5 * 0.09)
    assert np.allclose(answers.total - alone(without("2"), **shared).total, 1.0)


def test_an_empty_cohort_is_a_round_without_messages():
    some = work()
    grid = grid_of(some)
    engine = engine_on(some, grid)
    before = len(grid.sent)
    assert list(engine.run([])) == []
    assert len(grid.sent) == before


def failing(method, after):
    calls = {"left": after}

    def broken(called):
        if called == method:
            calls["left"] -= 1
            if calls["left"] < 0:
                raise ConnectionError("the SuperLink is gone")

    return broken


@pytest.mark.parametrize("method", ["push_messages", "pull_messages"])
def test_a_broken_transport_stops_the_round(method):
    some = work()
    grid = grid_of(some)
    engine = engine_on(some, grid)
    grid.broken = failing(method, 0)
    with pytest.raises(TransportFailed, match="the SuperLink is gone"):
        list(engine.run(round_of(some)))


def test_messages_that_the_superlink_does_not_take_stop_the_round():
    some = work()
    grid = grid_of(some)
    engine = engine_on(some, grid)
    grid.push_messages = lambda _messages: []
    with pytest.raises(TransportFailed, match="did not take"):
        list(engine.run(round_of(some)))


def test_nobody_answers_but_everybody_is_there():
    """Dead clients are not a dead line: the round is released, the server adds all the noise."""
    answers, _ = played({str(n): Fault(drop=True) for n in range(6)})
    assert not answers.answered
    assert not answers.total.any()
    assert len(answers.discarded) == 5


def test_quorum_counts_connected_nodes_before_anyone_is_asked():
    some = work()
    grid = grid_of(some)
    engine = engine_on(some, grid, quorum=0.5, deadline=20.0)
    everyone = dict(grid.places)
    grid.places = dict(list(everyone.items())[:3])
    engine.reach()
    grid.places = dict(list(everyone.items())[:2])
    with pytest.raises(Refused, match="2 of 6 clients are connected, the quorum is 3"):
        engine.reach()
    assert grid.clock.now() >= 20  # they had that long to come back
    grid.places = everyone
    engine.reach()


def test_a_round_under_quorum_is_released_if_so_configured():
    some = work()
    grid = grid_of(some)
    engine = engine_on(some, grid, quorum=1.0, without_quorum="release", deadline=20.0)
    gone = next(node for node, place in grid.places.items() if place.node.client == "2")
    del grid.places[gone]
    engine.reach()
    tasks = round_of(some)
    answers = gather(tasks, engine.run(tasks), SIZE, checked=True)
    assert equal(answers, alone(without("2")))
    assert answers.discarded == {"2": "its node is not connected"}


def test_a_node_that_comes_back_under_another_id_is_found_again():
    some = work()
    grid = grid_of(some, faults={"2": Fault(drop=True, times=1)})
    engine = engine_on(some, grid, deadline=60.0)
    tasks, answers = round_of(some), []
    gone = next(node for node, place in grid.places.items() if place.node.client == "2")
    for reply in engine.run(tasks):
        if gone in grid.places:
            grid.places[42] = grid.places.pop(gone)
        answers.append(reply)
    assert equal(gather(tasks, answers, SIZE, checked=True), alone())


@pytest.mark.full(but=["0-continuous-central-sampled", "3-discrete-central-sampled"])
@pytest.mark.parametrize("coin", [None, 0.5], ids=["sampled", "everyone"])
@pytest.mark.parametrize("place", ["central", "distributed"])
@pytest.mark.parametrize("noise", ["continuous", "discrete"])
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_the_noise_of_a_release_is_the_planned_one_whoever_is_lost(noise, lost, place, coin):
    """Measured through the grid: clients' shares that arrive, and what the server tops up."""
    clients, size, planned = 6, 3000, 2.0
    torch.manual_seed(0)
    module = torch.nn.Linear(size // 3, 3, bias=False)
    data = Data((size // 3,), sizes=(0,) * clients)  # no rows: what is sent is noise alone
    some = data.work(module, Randomness(3))
    own = planned / math.sqrt(clients) if place == "distributed" else 0.0
    shared = {"own_deviation": own, "clips": np.full(clients, 1.0)}
    step = 2.0**-8
    if noise == "discrete":
        shared["grid"] = Grid(step, 24, size)
    grid = grid_of(some, faults={str(n): Fault(drop=True) for n in range(lost)})
    engine = engine_on(some, grid, deadline=20.0)
    start = torch.zeros(size)
    seen = []
    for round in range(10):
        tasks = tasks_for(start, range(clients), STEPS, round=round, run="r", plan="p", **shared)
        tasks = [replace(task, coin=coin) for task in tasks]
        answers = gather(tasks, engine.run(tasks), size, checked=True)
        assert len(answers.answered) == clients - lost
        given = Sum(
            round, answers.total, answers.received_variance, planned, 1.0, tasks[0].shared.grid
        )
        seen.append(Gaussian(Randomness(3)).release(given, {})[0].update)
    variance = np.mean(np.square(seen)) / planned**2
    # 30,000 numbers: the sample variance has a relative deviation of sqrt(2 / 30000) = 0.0082
    assert abs(variance - 1) < 4 * 0.0082
    received = answers.received_variance / planned**2
    assert received == pytest.approx((clients - lost) / clients if own else 0.0)


@pytest.mark.full
def test_a_thousand_clients_are_added_up_as_they_come():
    sizes = (3,) * 1000
    some = Data(sizes=sizes).work(logistic(), Randomness(1))
    grid = grid_of(some, packed=False)
    engine = engine_on(some, grid)
    start = torch.zeros(SIZE)
    tasks = tasks_for(start, range(1000), STEPS, clips=np.full(1000, 0.5), run="r", plan="p")
    answers = gather(tasks, engine.run(tasks), SIZE, checked=True)
    assert len(answers.answered) == 1000
    assert grid.most_held <= 64
    assert equal(answers, gather(tasks, local(some, 0).run(tasks), SIZE))


# --- who is who -----------------------------------------------------------------------------------


def opened(grid, some=None, keys=None, begun=False, deadline=20.0):
    there = Elsewhere(grid, Patience(deadline), keys, begun, plan="a root")
    return FlowerEngine(replace(some or work(), elsewhere=there), grid.clock)


def keyed(grid):
    for place in grid.places.values():
        place.key = f"-----{place.node.client}-----\n".encode()
    return {place.node.client: place.key.decode().strip() for place in grid.places.values()}


def test_a_missing_client_is_an_error_before_round_1():
    grid = grid_of(work())
    del grid.places[next(iter(grid.places))]
    with pytest.raises(InvalidInput, match="no node for client '0'"):
        opened(grid)
    assert grid.clock.now() >= 20
    opened(grid, begun=True)  # a resumed run needs a quorum only


@pytest.mark.parametrize(("seconds", "lost"), [(40, []), (200, ["2"])])
def test_a_resumed_run_waits_a_while_for_nodes_that_start_later_than_its_quorum(seconds, lost):
    some = work()
    grid = grid_of(some)
    late = next(node for node, place in grid.places.items() if place.node.client == "2")
    away = grid.places.pop(late)

    def comes(_):
        if grid.clock.now() >= seconds:
            grid.places.setdefault(late, away)

    grid.broken = comes
    engine = opened(grid, some, begun=True, deadline=120.0)
    engine.reach()
    assert 60 >= grid.clock.now() - 1 >= min(seconds, 60) - 1
    tasks = round_of(some)
    answers = gather(tasks, engine.run(tasks), SIZE, checked=True)
    assert list(answers.discarded) == lost
    assert equal(answers, alone(without(*lost)))
    before = grid.clock.now()
    engine.reach()  # once: who is away for long does not hold up every round
    assert grid.clock.now() == before


@pytest.mark.full(only=["True"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_node_that_is_greeted_again_because_it_is_slow_is_there_once(begun):
    some = work()
    grid = grid_of(some, slow={"2": 50.0})
    there = Elsewhere(grid, Patience(deadline=240.0, quorum=1.0), begun=begun)
    engine = FlowerEngine(replace(some, elsewhere=there), grid.clock)
    engine.reach()
    slow = next(node for node, place in grid.places.items() if place.node.client == "2")
    assert sum(kind == HELLO and node == slow for kind, node, _ in grid.sent) == 2
    assert 50.0 <= grid.clock.now() < 60.0  # its second introduction is not waited for
    grid.clock.sleep(60.0)
    engine.reach()
    assert engine._nodes.problems == {}
    tasks = round_of(some)
    assert equal(gather(tasks, engine.run(tasks), SIZE), alone())


def test_a_node_too_many_is_an_error_before_round_1():
    grid = grid_of(work())
    grid.places[7] = next(iter(grid.places.values()))
    with pytest.raises(InvalidInput, match="is there twice"):
        opened(grid)


def test_a_client_that_is_not_on_the_roster_is_an_error_before_round_1():
    grid = grid_of(work())
    place = next(iter(grid.places.values()))
    place.node = replace(place.node, client="stranger")
    with pytest.raises(InvalidInput, match="'stranger', is not on the roster"):
        opened(grid)


def test_keys_decide_who_is_who():
    grid = grid_of(work())
    keys = keyed(grid)
    opened(grid, keys=keys)
    first, second = list(grid.places.values())[:2]
    first.key, second.key = second.key, first.key
    with pytest.raises(InvalidInput, match="has the key of client"):
        opened(grid, keys=keys)
    first.key = b"another key"
    with pytest.raises(InvalidInput, match="a key that is not in the file of keys"):
        opened(grid, keys=keys)


def test_a_real_run_needs_keys():
    real = work(randomness=Randomness(0, "os"))
    with pytest.raises(InvalidInput, match=r"engine\.keys"):
        opened(grid_of(real), real)


def test_a_node_that_draws_from_a_seed_is_refused_in_a_real_run():
    grid = grid_of(work())
    keys = keyed(grid)
    with pytest.raises(InvalidInput, match="draws from a seed"):
        opened(grid, work(randomness=Randomness(0, "os")), keys)


def test_a_node_with_real_rows_takes_no_part_in_a_simulation():
    grid = grid_of(work(randomness=Randomness(0, "os")))
    with pytest.raises(InvalidInput, match="its rows are real"):
        opened(grid)


def test_a_node_with_another_model_is_an_error_before_round_1():
    grid = grid_of(work())
    place = next(iter(grid.places.values()))
    place.node = replace(place.node, parameters=7)
    with pytest.raises(InvalidInput, match="a model of 7 numbers"):
        opened(grid)


def test_without_a_grid_there_is_no_flower():
    from fedspend.engines.local import make_engine

    with pytest.raises(InvalidInput, match="runs inside a Flower ServerApp"):
        make_engine("flower", work())


def test_real_rows_are_not_trained_on_without_clip_run_and_plan():
    real = work(randomness=Randomness(0, "os"))
    from fedspend.engines.flower.wire import read_answer, task_content

    node = next(iter(grid_of(real).places.values())).node
    for shared in ({"clip": math.inf}, {"run": ""}, {"plan": ""}):
        (task,) = round_of(real, [0], **shared)
        assert read_answer(node.task(task_content(task))) == Refusal("unprotected")


def test_why_a_node_failed_is_not_sent(caplog):
    node = next(iter(grid_of(work()).places.values())).node

    def work_fails(_):
        raise RuntimeError("row 17: Ann is ill")

    from fedspend.engines.flower.wire import read_answer, task_content

    (task,) = round_of(work(), [0])
    reply = replace(node, work=work_fails).task(task_content(task))
    assert read_answer(reply) == Refusal("failed")
    assert "Ann" not in str(reply)
    assert "Ann is ill" in caplog.text
    assert read_answer(node.task(greeting_content(Refusal("task")))) == Refusal("task")


def test_a_task_that_comes_again_while_it_is_worked_on_waits_for_its_answer(tmp_path):
    """Two processes of one node, as Flower starts them: one draws noise, both send the same."""
    import threading
    import time

    from fedspend.client.answering import ServersAccount
    from fedspend.client.state import FolderStates
    from fedspend.engines.flower.wire import read_answer, task_content
    from fedspend.flower.node import node_of

    real = work(randomness=Randomness(0, "os"))
    states = FolderStates(tmp_path / "state")
    nodes = [node_of("2", real, local(real, 0), states, ServersAccount()) for _ in "ab"]
    worked = []

    def slowly(node):
        def slow(task):
            worked.append(task)
            time.sleep(0.3)
            return node.work(task)

        return replace(node, work=slow)

    (task,) = round_of(real, [2], own_deviation=1.0)
    answers = []
    threads = [
        threading.Thread(
            target=lambda node=node: answers.append(read_answer(node.task(task_content(task))))
        )
        for node in map(slowly, nodes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(worked) == 1
    assert len({answer.vector.tobytes() for answer in answers}) == 1
    assert len(answers) == 2
    assert oct((tmp_path / "state").stat().st_mode & 0o777) == "0o700"


def test_the_clients_own_account_is_asked_before_training():
    from fedspend.client.answering import ServersAccount
    from fedspend.client.declining import Declined
    from fedspend.engines.flower.wire import read_answer, task_content

    some, asked = work(), []

    class Account(ServersAccount):
        def admit(self, task):
            asked.append(task.shared.round)
            if task.shared.round > 0:
                raise Declined("account", "nothing is left")

    place = next(place for place in grid_of(some).places.values() if place.node.client == "2")
    trained = []
    node = replace(
        place.node,
        account=Account(),
        work=lambda task: trained.append(1) or place.node.work(task),
    )
    for round, expected in ((0, Contribution), (0, Contribution), (1, Refusal)):
        (task,) = round_of(some, [2], round=round)
        assert isinstance(read_answer(node.task(task_content(task))), expected)
    assert asked == [0, 1]  # a task that comes again is not charged again
    assert len(trained) == 1


def test_what_leaves_a_node_is_checked_there_too():
    from fedspend.engines.flower.wire import read_answer, task_content

    some = work()
    node = next(place.node for place in grid_of(some).places.values() if place.node.client == "2")
    (task,) = round_of(some, [2])
    for wrong in (np.full(SIZE, 0.2), np.full(SIZE, np.nan), np.zeros(SIZE - 1)):
        bad = replace(node, work=lambda t, v=wrong: Contribution(t.client, 0, v, None, "run-1"))
        assert read_answer(bad.task(task_content(task))) == Refusal("failed")


@pytest.mark.full
def test_flowers_telemetry_is_off():
    import subprocess
    import sys

    for first in ("import flwr.app", "pass"):
        code = f"{first}; import fedspend.engines.flower.wire; from flwr.supercore import telemetry"
        done = subprocess.run(
            [sys.executable, "-c", f"{code}; print(telemetry.FLWR_TELEMETRY_ENABLED)"],
            env={"PATH": "", "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == "0"


@pytest.mark.full
def test_a_superlink_that_is_gone_is_not_waited_for_for_ever():
    """Flower's own grid, and nobody at the other end."""
    import socket
    import time

    from flwr.superlink.grid import HttpGrid

    from fedspend.engines.flower.line import Line

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        # stays bound, and nobody listens: no other process can take the port meanwhile
        address = f"127.0.0.1:{found.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(TransportFailed, match="the line to the SuperLink failed"):
            Line(HttpGrid(address, insecure=True, token="none"), patience=0.3).nodes()
    assert time.monotonic() - began < 300
