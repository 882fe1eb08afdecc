"""The CP-SAT model: exact where it claims to be, never above an optimum elsewhere, and true to every replay."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from oracle.cases import case
from oracle.exhaustive import shortest_makespan
from oracle.orders import all_schedules, random_schedule, serial_schedule
from oracle.random_problems import random_problem, random_shared_problem

from cpipe.ir import Objective, Problem, Schedule
from cpipe.sim import Simulator, simulate
from cpipe.sim.memory import fits
from cpipe.solve.child.frames import EVENT
from cpipe.solve.child.worker import Link
from cpipe.solve.cpsat import memory, worker
from cpipe.solve.cpsat.job import Answer, Job, News
from cpipe.solve.cpsat.model import Model
from cpipe.solve.cpsat.replay import Replay
from cpipe.solve.milp.network import split_dominated

cp_model = pytest.importorskip("ortools.sat.python.cp_model")

LINE, LOOP, WAVE = (0, 1, 2), (0, 1, 0, 1), (0, 1, 1, 0)


class Hearing(Link):
    """A link that keeps what it is told, for a solver in this process."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.news: list[News] = []

    def send(self, kind: bytes, payload: bytes) -> None:
        """Keep the event."""
        assert kind == EVENT
        self.news.append(msgspec.msgpack.decode(payload, type=News))


def job_of(problem: Problem, start: Schedule | None = None, objective: Objective = "makespan", **changes: Any) -> Job:
    """Return the job of a problem, from the serial schedule unless another is given, with no bound to stop at."""
    schedule = split_dominated(problem, start or serial_schedule(problem))
    job = Job(
        problem=problem,
        start=schedule.orders,
        start_fits=fits(problem, schedule.orders),
        objective=objective,
        lower_bound_ns=0,
        work_limit=20.0,
        time_limit=None,
        seed=0,
    )
    return msgspec.structs.replace(job, **changes)


def search(problem: Problem, objective: Objective = "makespan", link: Hearing | None = None, **changes: Any) -> Answer:
    """Run the search in this process."""
    job = job_of(problem, objective=objective, **changes)
    return worker.work(msgspec.msgpack.encode(job), link or Hearing())


def value_of(problem: Problem, answer: Answer, objective: Objective = "makespan") -> int:
    """Return the replayed objective of an answer's orders, which must be whole, fit and finish."""
    assert answer.orders is not None, problem.name
    Schedule(orders=answer.orders).verify(problem)
    assert fits(problem, answer.orders), problem.name
    value = Simulator(problem, objective).value(answer.orders)
    assert value is not None, problem.name
    return value


def assert_optimum(problem: Problem, expected: int | None) -> None:
    """Check that `expected` is found, in the simulator, and proven; or that nothing fits (None)."""
    answer = search(problem)
    if expected is None:
        assert answer.orders is None, problem.name
        assert answer.status == "infeasible", problem.name
        return
    assert (value_of(problem, answer), answer.dual_bound_ns, answer.status) == (expected, expected, "optimal")


def best_of_all(problem: Problem, objective: Objective = "makespan") -> int | None:
    """Return the best objective of all orders that fit and finish, each replayed; None when there is none."""
    simulator = Simulator(problem, objective)
    values = [simulator.value(order.orders) for order in all_schedules(problem) if fits(problem, order.orders)]
    return min((value for value in values if value is not None), default=None)


@pytest.mark.parametrize(
    "block", [pytest.param(block, marks=() if block in (0, 2) else pytest.mark.slow) for block in range(10)]
)
def test_agrees_with_trying_everything(block: int) -> None:
    """On random small problems of every placement the search finds and proves what the exhaustive search finds."""
    for seed in range(20 * block, 20 * block + 20):
        problem = random_problem(seed)
        assert_optimum(problem, shortest_makespan(problem))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_bounds_hold_on_shared_pipes_and_behind_windows(block: int) -> None:
    """No order is shorter than what is proven for shared pipes, windows and collectives, and most are met."""
    met = 0
    seeds = range(15 * block, 15 * block + 15)
    for seed in seeds:
        problem = random_shared_problem(seed)
        expected = best_of_all(problem)
        answer = search(problem)
        if expected is None:
            assert answer.orders is None, problem.name
            met += 1
            continue
        assert answer.dual_bound_ns <= expected <= value_of(problem, answer), problem.name
        met += answer.dual_bound_ns == expected == value_of(problem, answer)
    assert met >= len(seeds) * 6 // 10


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_the_span_is_bounded_as_well(shared: bool) -> None:
    """The longest span of a device is bounded from below, and met where the first starts do not depend on the order."""
    for seed in range(60):
        problem = random_shared_problem(seed) if shared else random_problem(seed)
        if len(set(problem.placement)) < problem.num_stages or problem.num_stages * problem.microbatches > 4:
            continue
        expected = best_of_all(problem, "span")
        answer = search(problem, "span")
        if expected is None:
            assert answer.orders is None, problem.name
            continue
        assert answer.dual_bound_ns <= expected <= value_of(problem, answer, "span"), problem.name
        if not shared and problem.collectives is None:
            assert answer.dual_bound_ns == expected == value_of(problem, answer, "span"), problem.name


def hinted(model: Model, schedule: Schedule) -> tuple[str, int]:
    """Return status and objective of a model whose variables all have the values of a schedule's replay."""
    replay = Replay(model.network, schedule, simulate(model.network.problem, schedule), model.ticks)
    for variable, value in model.variables:
        model.cp.add_hint(variable, int(value(replay)))
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    solver.parameters.num_workers = 1
    status = solver.solve(model.cp)
    return solver.status_name(status), round(solver.objective_value) * model.network.unit_ns


@pytest.mark.parametrize("objective", ["makespan", "span"])
@pytest.mark.parametrize("shared", [False, True])
def test_every_replay_satisfies_the_model(objective: Objective, shared: bool) -> None:
    """Any order that fits, with its times from the simulator, is a solution: nothing cuts it off."""
    tried = 0
    for seed in range(60):
        problem = random_shared_problem(seed) if shared else random_problem(seed)
        schedule = split_dominated(problem, random_schedule(problem, Random(seed)))
        if not fits(problem, schedule.orders) or Simulator(problem).makespan(schedule.orders) is None:
            continue
        tried += 1
        timeline = simulate(problem, schedule)
        model = worker.build(job_of(problem, schedule, objective), timeline)
        assert model is not None
        worth = timeline.makespan_ns if objective == "makespan" else timeline.span_ns
        assert hinted(model, schedule) == ("OPTIMAL", worth), problem.name
    assert tried >= 20


def test_levels_and_profile_state_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bytes times time would not fit 64 bits, memory is stated by level changes: the optima stay."""
    monkeypatch.setattr(memory, "_MAX_ENERGY", 0)
    for seed in range(12):
        problem = random_problem(seed)
        assert_optimum(problem, shortest_makespan(problem))


def test_sizes_in_bytes_and_times_in_nanoseconds() -> None:
    """Capacities of 96 GB beside odd sizes and times of a second to the nanosecond change nothing but the scale."""
    small = case(4, LINE, forward=2, input_grad=2, activation=3, held=1, capacity=7)
    large = case(
        4,
        LINE,
        forward=2 * 10**9 + 2,
        input_grad=2 * 10**9 + 2,
        weight_grad=10**9 + 1,
        activation=30_000_000_003,
        held=10_000_000_001,
        capacity=70_000_000_009,
    )
    answers = search(small), search(large)
    assert answers[1].orders == answers[0].orders
    assert answers[1].dual_bound_ns == answers[0].dual_bound_ns * (10**9 + 1)


def test_times_beyond_the_solver_are_refused() -> None:
    """Times whose sums do not fit the solver's integers are not searched, rather than searched wrongly."""
    problem = case(2, (0, 1), forward=[1, 10**15])
    assert search(problem).status == "too_large"


@pytest.mark.parametrize(
    ("capacity", "expected"), [([3, 3, 3], 20), ([2, 3, 3], 21), ([1, 3, 3], 37), ([3, 1, 3], 27), (2, 21), (4, 20)]
)
def test_each_device_has_its_own_memory(capacity: Any, expected: int) -> None:
    """Limits of single devices move the optimum as proven in the field."""
    assert_optimum(case(6, LINE, capacity=capacity), expected)


@pytest.mark.parametrize(("held", "expected"), [(0, 21), (1, 25), (2, 25)])
def test_memory_held_for_the_weight_gradient(held: int, expected: int) -> None:
    """What D leaves behind for W counts until W ends."""
    assert_optimum(case(6, LINE, activation=2, held=held, capacity=4), expected)


def test_a_transient_counts_while_its_op_runs() -> None:
    """A D that needs four times an activation while it runs makes four units infeasible and five feasible."""
    assert_optimum(case(2, (0, 1), input_grad_transient=4, capacity=4), None)
    assert_optimum(case(2, (0, 1), input_grad_transient=4, capacity=5), 9)


def test_a_transient_of_an_op_without_length_counts() -> None:
    """An op that takes no time still needs its transient at its place in the order."""
    assert_optimum(case(2, (0, 1), input_grad=[0, 1], input_grad_transient=4, capacity=4), None)
    problem = case(2, (0, 1), input_grad=[0, 1], input_grad_transient=4, capacity=5)
    assert_optimum(problem, best_of_all(problem))


def test_a_cheaper_full_backward_is_chosen() -> None:
    """B is used where it costs less than D and W, and only there; and where D holds more than fits."""
    for full, merged in ((2, 2), (3, 0)):
        answer = search(case(2, (0,), weight_grad=2, full=full))
        assert answer.orders is not None
        assert Schedule(orders=answer.orders).to_text(2).count("B") == merged
    assert_optimum(case(2, (0, 1), held=3, capacity=2), 9)


@pytest.mark.parametrize(("occupancy", "full", "half"), [(1, 14, 14), (2, 15, 19), (3, 20, 27)])
def test_duplex(occupancy: int, full: int, half: int) -> None:
    """Messages hold their pipe; a half-duplex link is one pipe for both directions."""
    assert_optimum(case(4, (0, 1), occupancy=occupancy, capacity=4), full)
    assert_optimum(case(4, (0, 1), occupancy=occupancy, capacity=4, half_duplex=True), half)


@pytest.mark.parametrize(("placement", "latency", "expected"), [(WAVE, 1, 26), (WAVE, 4, 33), (LOOP, 4, 39)])
def test_two_stages_a_device(placement: Sequence[int], latency: int, expected: int) -> None:
    """A wave hands over on the device at its turn, so it wins over a loop on a slow link."""
    assert_optimum(case(4, placement, latency=latency), expected)


def test_messages_leave_in_the_order_of_their_producers() -> None:
    """Two streams of one sender share a pipe first in, first out: the optimum is that of the simulator, not below."""
    problem = case(2, (0, 1, 0, 1), forward=[3, 1, 1, 1], occupancy=4, capacity=8)
    answer = search(problem)
    assert answer.status == "optimal"
    assert value_of(problem, answer) == answer.dual_bound_ns == shortest_makespan(problem)


@pytest.mark.parametrize(
    ("reduce", "expected"), [(0, 14), (2, 16), (6, 20), ([0, 2, 0], 15), ([4, 0, 0], 18), ([0, 0, 4], 18)]
)
def test_reduces_after_the_last_weight_gradient(reduce: Any, expected: int) -> None:
    """A stage's gradients are reduced after its last W, and the makespan includes it."""
    assert_optimum(case(4, LINE, reduce=reduce, capacity=3), expected)


def test_collectives_of_a_device_do_not_overlap() -> None:
    """Two stages of a device reduce one after the other on its data-parallel link."""
    for gather in (None, [3, 0, 2, 1]):
        problem = case(2, WAVE, reduce=[5, 4, 3, 6], gather=gather)
        assert_optimum(problem, shortest_makespan(problem))


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("message", [0, 1])
def test_receive_windows(window: int, message: int) -> None:
    """A receive window delays messages and its buffers take memory: the optimum over all orders is met."""
    problem = case(3, (0, 1), forward=[1, 3], occupancy=1, latency=2, window=window, message=message, capacity=4)
    assert_optimum(problem, best_of_all(problem))


@pytest.mark.parametrize("window", [1, 2])
def test_windows_of_a_channel_that_two_stages_share(window: int) -> None:
    """On a loop two stages fill one channel: the model finds what replays at its own objective."""
    problem = case(3, LOOP, forward=[1, 2, 1, 3], occupancy=1, latency=1, window=window, capacity=9)
    answer = search(problem)
    assert answer.status == "optimal"
    assert answer.dual_bound_ns <= value_of(problem, answer)
    free = search(case(3, LOOP, forward=[1, 2, 1, 3], occupancy=1, latency=1, capacity=9))
    assert free.dual_bound_ns <= answer.dual_bound_ns


def test_news_tell_incumbents_and_bounds() -> None:
    """Progress tells the size, then incumbent, bound and gap of each improvement, with orders that can be replayed."""
    problem = case(6, LINE, weight_grad=[1, 2, 3], capacity=3)
    link = Hearing()
    answer = search(problem, link=link)
    assert link.news[0].text.startswith("cpsat: ")
    assert "booleans" in link.news[0].text
    told = [news for news in link.news if news.orders is not None]
    assert told
    assert all("makespan" in news.text and "bound" in news.text and "gap" in news.text for news in told)
    values = [Simulator(problem).makespan(news.orders) for news in told if news.orders is not None]
    assert all(value is not None for value in values)
    assert value_of(problem, answer) == min(value for value in values if value is not None)


def test_a_wish_to_stop_ends_the_search() -> None:
    """Once the caller wants the answer the solver ends, far within its work, and what it had is answered."""
    problem = case(24, (0, 1, 2, 3, 3, 2, 1, 0), forward=7, input_grad=5, weight_grad=[3, 4, 5, 6] * 2, capacity=9)
    link = Hearing()
    link.stopped.set()
    answer = search(problem, link=link, work_limit=10_000.0)
    assert answer.status in ("feasible", "unknown")
    assert answer.work < 5_000


def test_the_seed_is_the_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of the solver is given the seed, one worker, counted work, and a clock only if there is a limit."""
    seen: list[tuple[Any, ...]] = []
    solve = cp_model.CpSolver.solve

    def spy(solver: Any, *rest: Any) -> Any:
        given = solver.parameters
        seen.append((given.random_seed, given.num_workers, given.max_deterministic_time, given.max_time_in_seconds))
        return solve(solver, *rest)

    monkeypatch.setattr(cp_model.CpSolver, "solve", spy)
    search(case(2, (0, 1)), seed=7, work_limit=1.0)
    search(case(2, (0, 1)), seed=7, work_limit=1.0, time_limit=50.0)
    assert {item[:2] for item in seen} == {(7, 1)}
    assert 0 < seen[0][2] <= 1.0
    assert seen[0][3] == float("inf")
    assert seen[-1][3] <= 50.0
