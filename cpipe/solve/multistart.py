"""Local search from many orders: briefly from each kind, then longer from the best.

Which order leads to the best one cannot be told from its own makespan, so the first rounds scout. Small problems with
several stages a device are annealed warm, where ways out of a local optimum matter; with one, and in large problems,
where every replay counts, cold is best. The latter are swept in windows of time, which make replays short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cpipe.ir import Problem, Schedule
from cpipe.sim import Simulator
from cpipe.solve.search import LEAST_SWEPT, LocalSearch

__all__ = ["MultiStart"]

_SCOUTS = 4  # rounds from different orders
_SCOUT_WORK = 250_000  # op visits of each: about a tenth of a second
_ROUNDS = 4  # rounds from the best orders
_SWEPT_ROUNDS = 6  # the same where windows make them cheaper
_LARGE_ROUNDS = 1
_ROUND_WORK = 800_000
_LARGE_ROUND_WORK = 2_000_000  # in large problems opening a window costs more
_WARM = (80, 25, 150, 50, 10)  # first temperatures, in percent of the mean op
_COOL = (10, 0, 25, 0, 10)  # one stage a device
_COLD = (0, 10, 25, 0, 10)
_SMALL = 800  # ops
_LARGE = 2_000
_SWEEPS = 4
_MOST_ROUNDS = 64

Order = tuple[tuple[int, ...], ...]


class MultiStart:
    """The pool of orders of one problem, and the rounds of local search on it.

    Parameters
    ----------
    problem, simulator
        The problem and its simulator, whose objective counts.
    seed
        Of every random choice.
    expired
        Asked before each replay; True ends the search.

    Attributes
    ----------
    evaluations
        Number of replays so far.
    """

    def __init__(self, problem: Problem, simulator: Simulator, seed: int, expired: Callable[[], bool]) -> None:
        self.evaluations = 0
        self._problem, self._simulator = problem, simulator
        self._seed = seed * _MOST_ROUNDS
        self._expired = expired
        self._pool: dict[Order, int] = {}

    def add(self, orders: Order, value: int) -> None:
        """Add an order that fits and finishes, with its objective [ns]; an order counts once."""
        self._pool.setdefault(orders, value)

    def rounds(self, target_ns: int) -> Iterator[Schedule]:
        """Run the rounds and yield what each finds; the caller stops when it has enough.

        Parameters
        ----------
        target_ns
            A round ends as soon as its objective is at most this.
        """
        num_ops = sum(map(len, next(iter(self._pool), ())))
        several = self._problem.num_stages > self._problem.num_devices
        heats = _COLD if num_ops > _SMALL else _WARM if several else _COOL
        large = num_ops > _LARGE and self._simulator.is_direct
        for number, start in enumerate(self._ranked()[: 1 if large else _SCOUTS]):
            yield self._improve(start, target_ns, _SCOUT_WORK, heats[number % len(heats)])
        work = _LARGE_ROUND_WORK if large else _ROUND_WORK
        swept = num_ops >= LEAST_SWEPT * self._problem.num_devices and self._simulator.is_direct
        for number in range(_LARGE_ROUNDS if large else _SWEPT_ROUNDS if swept else _ROUNDS):
            ranked = self._ranked()
            rank = number % 3 if number % 2 else 0  # the best, and now and then one that is nearly as good
            yield self._improve(ranked[min(rank, len(ranked) - 1)], target_ns, work, heats[number % len(heats)])

    def _ranked(self) -> list[Order]:
        """Return the orders, the shortest first; the first of equals stays first."""
        return sorted(self._pool, key=lambda orders: self._pool[orders])

    def _improve(self, start: Order, target_ns: int, work: int, heat: int) -> Schedule:
        self._seed += 1
        search = LocalSearch(
            self._problem,
            self._simulator,
            target_ns=target_ns,
            budget=work,
            seed=self._seed,
            heat=heat,
            sweeps=_SWEEPS,
            expired=self._expired,
        )
        value, schedule = search.improve(Schedule(orders=start))
        self.evaluations += search.evaluations
        del self._pool[start]  # what came of it is in its place
        self._pool.setdefault(schedule.orders, value)
        return schedule
