"""Earliest starts and latest ends of all ops under a deadline, and which ops must come first: to a fixpoint.

Five arguments, each for a schedule that meets the deadline:

* *Way.* An op starts after its inputs, and after the op before it in its series.
* *Load.* What must come before an op on its resource takes its time, from the earliest start among it on.
* *Memory.* When an op starts, all that must have been allocated before it is there, less what can have been freed: by
  ops that are allowed before it, no earlier than they can end. The op waits until that fits. What has to have been
  freed whatever else was freed comes before it, and an allocation that would not fit before it comes after it.
* *Time.* Of two ops on one resource, the one that cannot go first and let the other end in time goes second.
* *Splits.* Where D and W cost more than B, only so many backwards can be split as the device has time for; only so
  many W can then be behind.

Latest ends follow from the same arguments with time reversed, so there are two views of everything (`_View`).
"""

from __future__ import annotations

from cpipe.solve.busy import Busy, Counts, Releases, Room, memory_plan
from cpipe.solve.jackson import preemptive_makespan
from cpipe.solve.series import Edge, SeriesModel
from cpipe.solve.staircases import Lanes, Staircase, inverse, lift

__all__ = ["RefutedError", "Windows"]


class RefutedError(ValueError):
    """No schedule meets the deadline; `resource` is where that was seen (an index into `SeriesModel.resources`)."""

    def __init__(self, resource: int) -> None:
        self.resource = resource
        super().__init__(f"the deadline cannot be met on resource {resource}")


class _View:
    """One direction of time.

    Attributes
    ----------
    heads, tails
        Per series and microbatch: earliest start, and least time from the end to the end of everything [units].
    before
        Per series, by other series of its resource: the staircases.
    news
        Per resource: whether its staircases changed since the other view saw them.
    """

    def __init__(self, model: SeriesModel) -> None:
        n = model.microbatches
        self.model = model
        self.heads = [[one.release] * n for one in model.series]
        self.tails = [[one.delivery] * n for one in model.series]
        self.before: list[dict[int, Staircase]] = [{} for _ in model.series]
        paths = _paths(model)
        for members in model.resources:
            for one in members:
                self.before[one] = {
                    other: list(range(1, n + 1)) if paths[one] >> other & 1 else [0] * n
                    for other in members
                    if other != one
                }
        self.inputs: list[list[tuple[int, int, int]]] = [[] for _ in model.series]
        self.feed(())
        self.rooms = [
            None if room is None else Room(model, resource, room) for resource, room in enumerate(model.rooms)
        ]
        self.plans: list[list[Counts]] = [[] for _ in model.series]
        self.news = [True] * len(model.resources)
        self.unplanned = [True] * len(model.resources)

    def feed(self, more: tuple[Edge, ...]) -> None:
        """Set the inputs of every series from the edges of the model and `more`: source, delay from its start, lag."""
        self.inputs = [[] for _ in self.model.series]
        for edge in (*self.model.edges, *more):
            duration = self.model.series[edge.source].duration
            self.inputs[edge.target].append((edge.source, duration + edge.delay, edge.lag))

    def copy(self) -> _View:
        other: _View = object.__new__(_View)
        other.__dict__.update(self.__dict__)
        other.heads = [list(row) for row in self.heads]
        other.tails = [list(row) for row in self.tails]
        other.before = [{one: list(steps) for one, steps in row.items()} for row in self.before]
        other.plans, other.news, other.unplanned = list(self.plans), list(self.news), list(self.unplanned)
        return other

    def touch(self, resource: int) -> None:
        """Remember that staircases of a resource changed."""
        self.news[resource] = self.unplanned[resource] = True

    def order_by_memory(self) -> bool:
        """Order what must have been freed before an op, and what cannot be allocated before it."""
        changed = False
        for resource, room in enumerate(self.rooms):
            if room is None or not self.unplanned[resource]:
                continue
            self.unplanned[resource] = False
            for one in self.model.resources[resource]:
                self.plans[one] = memory_plan(room, self.before, one, self.model.microbatches)
                if self._order_around(one, room):
                    self.touch(resource)
                    changed = True
        return changed

    def _order_around(self, one: int, room: Room) -> bool:
        series, changed = self.model.series[one], False
        limit = room.room - series.transient
        for microbatch, (opened, possible) in enumerate(self.plans[one]):
            spare = limit - room.level(opened, possible)
            if spare < 0:
                raise RefutedError(series.resource)
            for index, closer in enumerate(room.closers):
                if closer != one:
                    steps = self.before[one][closer]
                    count = room.fewest_closed(opened, possible, index, steps[microbatch], spare)
                    changed |= lift(steps, microbatch, count)
            for index, opener in enumerate(room.openers):
                if opener != one:
                    behind = self.before[opener][one]
                    most = opened[index]
                    while most < len(behind) and behind[most] <= microbatch:
                        most += 1
                    count = room.most_opened(opened, possible, index, most, spare)
                    if count < most:
                        changed |= lift(behind, count, microbatch + 1)
        return changed

    def sweep(self, deadline: int) -> bool:
        """Raise heads once, microbatch by microbatch along the series."""
        model, heads = self.model, self.heads
        plan = []
        for one, series in enumerate(model.series):
            others = [(steps, heads[d], model.series[d].duration) for d, steps in self.before[one].items()]
            busy = Busy((heads[one], series.duration), others)
            room, releases = self.rooms[series.resource], None
            if room is not None:
                closers = [(heads[closer], model.series[closer].duration) for closer in room.closers]
                releases = Releases(room, series.transient, self.plans[one], closers)
            inputs = [(heads[source], delay, lag) for source, delay, lag in self.inputs[one]]
            plan.append((series, heads[one], self.tails[one], inputs, busy, releases))
        changed = False
        for microbatch in range(model.microbatches):
            for series, own, tails, inputs, busy, releases in plan:
                start = max(own[microbatch], busy.advance(microbatch))
                for source, delay, lag in inputs:
                    if microbatch >= lag and source[microbatch - lag] + delay > start:
                        start = source[microbatch - lag] + delay
                if releases is not None:
                    start = releases.advance(microbatch, start)
                if start > own[microbatch]:
                    if start + series.duration + tails[microbatch] > deadline:
                        raise RefutedError(series.resource)
                    own[microbatch] = start
                    changed = True
        return changed

    def tell(self, other: _View) -> None:
        """Let the view of reversed time know what this one found."""
        last = len(self.heads) - 1
        for mine, theirs in zip(self.heads, reversed(other.tails), strict=True):
            theirs[:] = reversed(mine)
        for resource, members in enumerate(self.model.resources):
            if not self.news[resource]:
                continue
            for one in members:
                for d, steps in self.before[one].items():
                    other.before[last - d][last - one] = inverse(steps)
            self.news[resource] = False
            other.unplanned[resource] = True


class Windows:
    """Windows and precedences of one model.

    Parameters
    ----------
    model
        The model.

    Attributes
    ----------
    rounds
        Rounds that the last call of `settle` took.
    """

    def __init__(self, model: SeriesModel) -> None:
        self.model = model
        self.rounds = 0
        self._ahead, self._back = _View(model), _View(model.mirrored())
        self._lanes = Lanes(len(model.series), model.microbatches)
        self._closed = [[0] * model.microbatches for _ in model.series]  # what comes before each op, per series
        self._most_split = [model.microbatches] * len(model.splits)

    def copy(self) -> Windows:
        """Return windows that change on their own."""
        other = object.__new__(Windows)
        other.__dict__.update(self.__dict__)
        other._ahead, other._back = self._ahead.copy(), self._back.copy()
        other._closed = [list(row) for row in self._closed]
        other._most_split = list(self._most_split)
        return other

    def settle(self, deadline: int, max_rounds: int) -> None:
        """Tighten all windows for the schedules of at most `deadline` [units], in at most so many rounds.

        Raises
        ------
        RefutedError
            When there is no such schedule.
        """
        ahead, back = self._ahead, self._back
        for number in range(1, max_rounds + 1):
            self.rounds = number
            changed = self._order_by_time(deadline) | self._follow_senders() | self._limit_splits(deadline)
            if changed or any(ahead.unplanned) or number == 1:
                changed |= self._close()
            for view, other in ((ahead, back), (back, ahead)):
                changed |= view.order_by_memory()
                changed |= view.sweep(deadline)
                view.tell(other)
            if not changed:
                break
        for resource, jobs in enumerate(self.machines()):
            if preemptive_makespan(jobs) > deadline:
                raise RefutedError(resource)

    def order(self, first: tuple[int, int], second: tuple[int, int]) -> None:
        """Let one op (series, microbatch) come before another of its resource; `settle` finds what follows."""
        (one, earlier), (other, later) = first, second
        lift(self._ahead.before[other][one], later, earlier + 1)
        self._ahead.touch(self.model.series[one].resource)

    def may_precede(self, first: tuple[int, int], second: tuple[int, int]) -> bool:
        """Return whether `first` may come before `second`, but need not."""
        (one, earlier), (other, later) = first, second
        before = self._ahead.before
        return before[other][one][later] <= earlier and before[one][other][earlier] <= later

    def span(self, first: tuple[int, int], second: tuple[int, int]) -> int:
        """Return how long a schedule is at least if `first` comes before `second`, as far as their windows say."""
        (one, earlier), (other, later) = first, second
        view, series = self._ahead, self.model.series
        return view.heads[one][earlier] + series[one].duration + series[other].duration + view.tails[other][later]

    def next_open(self, series: int, microbatch: int, other: int) -> int:
        """Return how many of `other` are known to come before an op: the next one is the first that need not."""
        return self._ahead.before[series][other][microbatch]

    def machines(self) -> list[list[tuple[int, int, int]]]:
        """Return head, length and tail of the ops of every resource [units]."""
        view = self._ahead
        return [
            [
                (head, self.model.series[one].duration, tail)
                for one in members
                for head, tail in zip(view.heads[one], view.tails[one], strict=True)
            ]
            for members in self.model.resources
        ]

    def _order_by_time(self, deadline: int) -> bool:
        """Find what must come first because the other order would miss the deadline."""
        view, series, changed = self._ahead, self.model.series, False
        n = self.model.microbatches
        for resource, members in enumerate(self.model.resources):
            for one in members:
                for other, steps in view.before[one].items():
                    slack = deadline - series[one].duration - series[other].duration
                    tails, count = view.tails[other], 0
                    for microbatch, head in enumerate(view.heads[one]):
                        count = max(count, steps[microbatch])
                        while count < n and head + tails[count] > slack:
                            count += 1
                        if count > steps[microbatch]:
                            steps[microbatch] = count
                            view.touch(resource)
                            changed = True
        return changed

    def _follow_senders(self) -> bool:
        """Carry precedences between messages of one sender over to the ops that send them, and back."""
        changed = False
        before = self._ahead.before
        for first, second, sender, other in self.model.senders:
            for messages, ops in (
                (before[first][second], before[sender][other]),
                (before[second][first], before[other][sender]),
            ):
                if messages != ops:
                    joined = list(map(max, messages, ops))
                    messages[:] = ops[:] = joined
                    changed = True
                    self._ahead.touch(self.model.series[first].resource)
                    self._ahead.touch(self.model.series[sender].resource)
        return changed

    def _limit_splits(self, deadline: int) -> bool:
        """Bound how often D and W may run instead of a shorter B, and so how many W can be behind.

        All work of a device, with B everywhere, lies between its first head and its last tail; what is left until the
        deadline pays for at most `most` splits of a stage. As the W of a B ends with it, at least m - most W have
        ended when G m starts, and m + 1 - most when its gradient leaves.
        """
        view, model, changed = self._ahead, self.model, False
        for index, split in enumerate(model.splits):
            resource = model.series[split.gradient].resource
            members = model.resources[resource]
            work = model.microbatches * sum(model.series[one].duration for one in members)
            span = min(view.heads[one][0] for one in members) + work + min(view.tails[one][-1] for one in members)
            if span > deadline:
                raise RefutedError(resource)
            most = (deadline - span) // split.extra
            if most >= self._most_split[index]:
                continue
            self._most_split[index], changed = most, True
            steps = view.before[split.gradient][split.weight]
            for microbatch in range(most + 1, model.microbatches):
                steps[microbatch] = max(steps[microbatch], microbatch - most)
            view.touch(resource)
        if changed:
            late = tuple(
                Edge(split.weight, split.reader, split.delay, most)
                for split, most in zip(model.splits, self._most_split, strict=True)
                if split.reader is not None and most < model.microbatches
            )
            last = len(model.series) - 1
            view.feed(late)
            self._back.feed(tuple(edge._replace(source=last - edge.target, target=last - edge.source) for edge in late))
        return changed

    def _close(self) -> bool:
        """Add what follows from several precedences, across resources too."""
        lanes, closed, view, changed = self._lanes, self._closed, self._ahead, False
        larger, width = lanes.larger, lanes.width
        plan = [(one, view.inputs[one], list(row.items()), closed[one]) for one, row in enumerate(view.before)]
        for microbatch in range(self.model.microbatches):
            for one, inputs, row, mine in plan:
                known = first = mine[microbatch]
                if microbatch:
                    known = larger(known, larger(mine[microbatch - 1], microbatch << width * one))
                for source, _, lag in inputs:
                    if microbatch >= lag:
                        at = microbatch - lag
                        known = larger(known, larger(closed[source][at], at + 1 << width * source))
                for other, steps in row:
                    count = steps[microbatch]
                    if count:
                        known = larger(known, larger(closed[other][count - 1], count << width * other))
                if known == first:
                    continue
                if lanes.get(known, one) > microbatch:  # it would have to come before itself
                    raise RefutedError(self.model.series[one].resource)
                mine[microbatch] = known
                for other, steps in row:
                    if lift(steps, microbatch, lanes.get(known, other)):
                        view.touch(self.model.series[one].resource)
                        changed = True
        return changed


def _paths(model: SeriesModel) -> list[int]:
    """Return, per series, the bit mask of the series on the way to it within one microbatch."""
    paths = [0] * len(model.series)
    for edge in sorted(model.edges, key=lambda edge: edge.target):
        if not edge.lag:
            paths[edge.target] |= paths[edge.source] | 1 << edge.source
    return paths
