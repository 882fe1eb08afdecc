"""Event replay of a plan: the times that its programs take on the network of a problem.

The machine executed here is the plan's own: hosts that walk through their programs, pipes that carry messages, links
that carry collectives. Events come off one heap in order of time. What is equal to the model of the search by design:

* a host does an op as soon as it gets there, and stands at a WAIT until the message has arrived;
* a message is ready once it is sent *and* its receive is posted; behind one sender's earlier message on the same pipe
  it waits its turn; of several senders the one that is ready first is served (ties: lower rank, earlier op);
* a fused pair is one op;
* when all ranks have done everything else, and their collectives have ended, they make the step together;
* copies to host memory, and those back, run in the order in which their rank posts them, one at a time each way;
* a collective is ready when it is posted, and holds its rank's data-parallel link and every contended pipe; that over
  the copies of a stage is ready when all of their ranks have posted it, and holds the links of all of them (ties: as if
  its lowest rank had posted it behind all of its messages).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import NamedTuple

from cpipe.ir import Hop, Problem, Stage
from cpipe.plan.validate.layout import Layout, Step

__all__ = ["Outcome", "replay"]

_UNKNOWN = -1


class Outcome(NamedTuple):
    """What a replay gives: by rank and program index, start and end [ns]; and the ranks that never finish."""

    times: dict[int, dict[int, tuple[int, int]]]
    makespan_ns: int
    blocked: dict[int, Step]


class _Transfer:
    """A message or collective on its way; times [ns], `_UNKNOWN` until they happen."""

    __slots__ = ("done", "lane", "latency", "occupancy", "order", "pipes", "posted", "queued", "sent", "waiters")

    def __init__(self, lane: Hashable, pipes: tuple[Hashable, ...], occupancy: int, latency: int) -> None:
        self.lane = lane
        self.pipes = pipes
        self.occupancy = occupancy
        self.latency = latency
        self.order = (False, 0, 0)  # contended, rank, index: who goes first of those that are ready at one time
        self.sent = _UNKNOWN
        self.posted = _UNKNOWN
        self.queued = False
        self.done = _UNKNOWN
        self.waiters: list[int] = []


def replay(layout: Layout, programs: dict[int, list[Step]], problem: Problem) -> Outcome:
    """Run the programs of a plan that is structurally right."""
    return _Machine(layout, programs, problem).run()


class _Machine:
    """One replay."""

    def __init__(self, layout: Layout, programs: dict[int, list[Step]], problem: Problem) -> None:
        self._layout = layout
        self._programs = programs
        self._problem = problem
        self._shared = _shared_pipes(problem)
        self._clock = dict.fromkeys(programs, 0)
        self._position = dict.fromkeys(programs, 0)
        self._times: dict[int, dict[int, tuple[int, int]]] = {rank: {} for rank in programs}
        self._messages: dict[tuple[int, int, int], _Transfer] = {}  # channel, reading stage, mb
        self._collectives: dict[tuple[int, int], deque[_Transfer]] = defaultdict(deque)  # rank, stage: not waited for
        self._steps: dict[_Transfer, list[tuple[int, Step]]] = {}  # of a collective: who posted it, and where
        self._copies: dict[int, _Transfer] = {}  # by group of copies
        self._moves: dict[tuple[str, int, int], _Transfer] = {}  # OFFLOAD or RELOAD, stage, mb
        self._posts: dict[int, list[tuple[int, Step, int]]] = defaultdict(list)  # by group of copies: rank, post, when
        self._lanes: dict[Hashable, deque[_Transfer]] = defaultdict(deque)
        self._free: dict[Hashable, int] = defaultdict(int)
        self._heap: list[tuple[int, bool, int, int, _Transfer]] = []
        self._finish = 0

    def run(self) -> Outcome:
        """Run all hosts until nothing moves."""
        runnable = list(self._programs)
        while runnable or self._heap:
            while runnable:
                self._advance(runnable.pop())
            if self._heap:
                runnable += self._carry()
        blocked = {
            rank: steps[self._position[rank]]
            for rank, steps in self._programs.items()
            if self._position[rank] < len(steps)
        }
        if self._problem.step_ns:
            self._step_together()
        return Outcome(self._times, self._finish, blocked)

    def _step_together(self) -> None:
        """Let every rank's STEP begin when the last of them has finished."""
        begin = self._finish
        self._finish += self._problem.step_ns
        for rank, steps in self._programs.items():
            for step in steps:
                if step.op == "STEP":
                    self._times[rank][step.at] = (begin, self._finish)

    def _advance(self, rank: int) -> None:
        """Walk through a program until a WAIT stops it."""
        steps, now = self._programs[rank], self._clock[rank]
        for position in range(self._position[rank], len(steps)):
            step = steps[position]
            if step.op in ("F", "D", "W", "B"):
                if step.fused and step.op == "B":
                    continue  # it ran with its F
                if step.fused:
                    end = now + _pair_duration(self._problem, step.stage, steps[position + 1].stage)
                else:
                    end = now + _duration(self._problem.stages[step.stage], step.op)
                self._times[rank][step.at] = (now, end)
                now = end
                self._finish = max(self._finish, end)
            elif step.op == "WAIT":
                transfer = self._awaited(rank, step)
                if transfer.done == _UNKNOWN:
                    transfer.waiters.append(rank)
                    self._position[rank], self._clock[rank] = position, now
                    return
                now = max(now, transfer.done)
                if step.group >= 0:
                    self._collectives[rank, step.stage].popleft()
            elif step.op == "RECV":
                transfer = self._message(step.channel, step.stage, step.mb)
                transfer.posted = now
                self._offer(transfer)
            elif step.op == "SEND":
                self._send(rank, step, now)
            elif step.op in ("OFFLOAD", "RELOAD"):
                self._start_move(rank, step, now)
            elif step.op != "STEP" and self._layout.groups[step.group].kind == "weight_copies":
                self._post_copy(rank, step, now)
            elif step.op != "STEP":
                self._start_collective(rank, step, now)
        self._position[rank], self._clock[rank] = len(steps), now

    def _awaited(self, rank: int, wait: Step) -> _Transfer:
        if wait.copy:
            return self._moves[wait.copy, wait.stage, wait.mb]
        if wait.group >= 0:
            return self._collectives[rank, wait.stage][0]
        return self._message(wait.channel, wait.stage, wait.mb)

    def _message(self, channel: int, stage: int, mb: int) -> _Transfer:
        """Return the message that `stage` reads; whichever end comes first creates it."""
        key = (channel, stage, mb)
        if key not in self._messages:
            hop = self._hop(channel, stage)
            lane = (hop.pipe, hop.source)
            self._messages[key] = _Transfer(lane, (hop.pipe,), hop.occupancy_ns, hop.latency_ns)
        return self._messages[key]

    def _hop(self, channel: int, stage: int) -> Hop:
        problem = self._problem
        forward = self._layout.channels[channel].carries == "activation"
        hop = problem.forward_hops[stage - 1] if forward else problem.backward_hops[stage]
        if hop is None:
            raise LookupError(f"no hop into stage {stage}")  # structurally right plans send none
        return hop

    def _send(self, rank: int, step: Step, now: int) -> None:
        forward = self._layout.channels[step.channel].carries == "activation"
        transfer = self._message(step.channel, step.stage + (1 if forward else -1), step.mb)
        transfer.sent = now
        transfer.order = (transfer.pipes[0] in self._shared, rank, step.at)
        self._lanes[transfer.lane].append(transfer)
        self._offer(transfer)

    def _start_move(self, rank: int, step: Step, now: int) -> None:
        """Start a copy to or from host memory, behind those that the rank has posted in that direction."""
        way = (step.op, rank)
        transfer = _Transfer(way, (way,), self._problem.stages[step.stage].offload_ns, 0)
        transfer.sent = transfer.posted = now
        transfer.order = (False, rank, step.at)
        self._steps[transfer] = [(rank, step)]
        self._moves[step.op, step.stage, step.mb] = transfer
        self._lanes[way].append(transfer)
        self._offer(transfer)

    def _start_collective(self, rank: int, step: Step, now: int) -> None:
        stage, collectives = self._problem.stages[step.stage], self._problem.collectives
        pipes: tuple[Hashable, ...] = collectives.pipes if collectives is not None else ()
        length = stage.all_gather_ns if step.op == "ALL_GATHER" else stage.reduce_ns
        own = ("data-parallel", rank)
        transfer = _Transfer(own, (own, *pipes), length, 0)
        transfer.sent = transfer.posted = now
        transfer.order = (bool(pipes), rank, step.at)
        self._steps[transfer] = [(rank, step)]
        self._collectives[rank, step.stage].append(transfer)
        self._lanes[own].append(transfer)
        self._offer(transfer)

    def _post_copy(self, rank: int, step: Step, now: int) -> None:
        """Post a rank's part of the reduction over the copies of a stage; it starts with the last part."""
        posts, members = self._posts[step.group], self._layout.groups[step.group].stages
        transfer = self._copies.setdefault(step.group, _Transfer(("copies", step.group), (), 0, 0))
        posts.append((rank, step, now))
        self._steps[transfer] = [(poster, post) for poster, post, _ in posts]
        self._collectives[rank, step.stage].append(transfer)
        if len(posts) < len(members):
            return
        collectives = self._problem.collectives
        shared: tuple[Hashable, ...] = collectives.pipes if collectives is not None else ()
        first, post, _ = min(posts)
        transfer.pipes = (*(("data-parallel", poster) for poster, *_ in sorted(posts)), *shared)
        transfer.occupancy = self._problem.stages[step.stage].reduce_ns
        transfer.sent = transfer.posted = max(when for *_, when in posts)
        transfer.order = (True, first, len(self._layout.programs[first][1].ops) + post.at)
        self._lanes[transfer.lane].append(transfer)
        self._offer(transfer)

    def _offer(self, transfer: _Transfer) -> None:
        """Put a transfer on the heap if it is its lane's turn and both ends are there."""
        queue = self._lanes[transfer.lane]
        if queue and queue[0] is transfer and _UNKNOWN not in (transfer.sent, transfer.posted) and not transfer.queued:
            transfer.queued = True
            heappush(self._heap, (max(transfer.sent, transfer.posted), *transfer.order, transfer))

    def _carry(self) -> list[int]:
        """Carry the transfer that is ready first; return the ranks that stood waiting for it."""
        ready, *_, transfer = heappop(self._heap)
        start = max(ready, *(self._free[pipe] for pipe in transfer.pipes))
        end = start + transfer.occupancy
        for pipe in transfer.pipes:
            self._free[pipe] = end
        transfer.done = end + transfer.latency
        for rank, step in self._steps.get(transfer, ()):
            self._times[rank][step.at] = (start, end)
            self._finish = max(self._finish, end)
        queue = self._lanes[transfer.lane]
        queue.popleft()
        if queue:
            self._offer(queue[0])
        return transfer.waiters


def _duration(stage: Stage, op: str) -> int:
    match op:
        case "F":
            return stage.forward_ns
        case "D":
            return stage.input_grad_ns
        case "W":
            return stage.weight_grad_ns
        case _:
            return stage.full_backward_ns


def _pair_duration(problem: Problem, forward: int, backward: int) -> int:
    """Return how long an FB takes [ns]: as measured and what is recomputed, else both parts; never less than one."""
    parts = problem.stages[forward].forward_ns, problem.stages[backward].full_backward_ns
    measured = problem.stages[forward].forward_backward_ns
    again = problem.stages[backward].recompute_ns
    return sum(parts) if measured is None else max(measured + again, *parts)


def _shared_pipes(problem: Problem) -> set[int]:
    """Return the pipes on which several ranks, or collectives, have a say."""
    senders: dict[int, set[int]] = defaultdict(set)
    for hop in (*problem.forward_hops, *problem.backward_hops):
        if hop is not None:
            senders[hop.pipe].add(hop.source)
    shared = {pipe for pipe, ranks in senders.items() if len(ranks) > 1}
    return shared | set(problem.collectives.pipes if problem.collectives is not None else ())
