"""Deadlock under rendezvous semantics, whatever the message size.

The model: a rank posts its program in order and stops at a WAIT until that receive is complete. Every SEND and RECV
joins an in-order queue of its rank; which ops share a queue is the transport's choice (`streams.queue_of`). A message
moves only when both of its ends are at the head of their queues. Nothing is timed: a plan that gets stuck here can
hang, a plan that does not cannot.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator

from cpipe.plan.validate.layout import Layout, Step
from cpipe.plan.validate.report import Report
from cpipe.plan.validate.streams import End, queue_of, stream_of

__all__ = ["check_deadlock"]


def check_deadlock(
    layout: Layout, programs: dict[int, list[Step]], ends: list[End], transport: str, report: Report
) -> bool:
    """Run the programs without times; report each wait cycle, op by op. Return whether all ranks finish."""
    run = _Run(layout, programs, ends, transport)
    run.run()
    stuck = False
    for cycle in run.cycles():
        stuck = True
        first = cycle[0]
        story = " -> ".join((*map(str, cycle), f"rank {first.rank} ops[{first.step.at}]"))
        report.step("deadlock", first.place, first.step.at, f"wait cycle under {transport}: {story}")
    return not stuck and not run.waiting


class _Run:
    """One dry run. An end is its index in `ends`; the other end of its message is `partner`, matched by order."""

    def __init__(self, layout: Layout, programs: dict[int, list[Step]], ends: list[End], transport: str) -> None:
        self._layout = layout
        self._programs = programs
        self._ends = ends
        self._queue_key = [(end.rank, queue_of(transport, end.rank, end.channel)) for end in ends]
        self._index = {(end.rank, end.step.at): index for index, end in enumerate(ends)}
        self._partner = _match(ends, transport)
        self._queues: dict[Hashable, deque[int]] = defaultdict(deque)
        self._posted = [False] * len(ends)
        self._done = [False] * len(ends)
        self._receive = {
            (end.channel.id, end.step.stage, end.step.mb): index
            for index, end in enumerate(ends)
            if end.step.op == "RECV"
        }
        self._position = dict.fromkeys(programs, 0)
        self.waiting: dict[int, tuple[Step, int]] = {}  # rank -> its WAIT, the receive that it waits for

    def run(self) -> None:
        """Let every rank go as far as it can."""
        runnable = list(self._programs)
        while runnable:
            rank = runnable.pop()
            for index in self._post(rank):
                runnable += self._move(self._queue_key[index])

    def _post(self, rank: int) -> Iterator[int]:
        """Go on with a program to its next WAIT that must block; yield each end posted."""
        steps = self._programs[rank]
        self.waiting.pop(rank, None)
        while self._position[rank] < len(steps):
            step = steps[self._position[rank]]
            if step.op == "WAIT" and step.channel >= 0:
                receive = self._receive.get((step.channel, step.stage, step.mb))
                # a WAIT for what is not posted yet is a fault of its own, and no rank's to end
                if receive is not None and self._posted[receive] and not self._done[receive]:
                    self.waiting[rank] = (step, receive)
                    return
            self._position[rank] += 1
            if step.op in ("SEND", "RECV"):
                index = self._index[rank, step.at]
                self._posted[index] = True
                self._queues[self._queue_key[index]].append(index)
                yield index

    def _move(self, key: Hashable) -> list[int]:
        """Complete messages as long as both their ends are heads, from this queue on; return the ranks it frees."""
        freed = []
        keys = [key]
        while keys:
            queue = self._queues[keys.pop()]
            if not queue or (partner := self._partner[queue[0]]) is None:
                continue
            other = self._queues[self._queue_key[partner]]
            if not other or other[0] != partner:
                continue
            for index, side in ((queue[0], queue), (partner, other)):
                side.popleft()
                self._done[index] = True
                keys.append(self._queue_key[index])
                rank = self._ends[index].rank
                if rank in self.waiting and self.waiting[rank][1] == index:
                    freed.append(rank)
        return freed

    def cycles(self) -> Iterator[list[End]]:
        """Yield each wait cycle once, from its lowest rank and op on."""
        seen: set[End] = set()
        for rank in sorted(self.waiting):
            trail: dict[End, None] = {}
            node: End | None = self._wait_of(rank)
            while node is not None and node not in trail and node not in seen:
                trail[node] = None
                node = self._blocker(node)
            if node is not None and node in trail:
                nodes = list(trail)
                cycle = nodes[nodes.index(node) :]
                start = cycle.index(min(cycle, key=lambda end: (end.rank, end.step.at)))
                yield cycle[start:] + cycle[:start]
            seen.update(trail)

    def _wait_of(self, rank: int) -> End | None:
        """Return the WAIT at which a rank stands, as an end."""
        if rank not in self.waiting:
            return None
        step, receive = self.waiting[rank]
        return self._ends[receive]._replace(step=step)

    def _blocker(self, node: End) -> End | None:
        """Return what must happen before `node` can: the reason it stands still, or None when nothing will help."""
        if node.step.op == "WAIT":
            return self._ends[self.waiting[node.rank][1]]
        index = self._index[node.rank, node.step.at]
        head = self._queues[self._queue_key[index]][0]
        if head != index:
            return self._ends[head]
        partner = self._partner[index]
        if partner is None:
            return None
        if not self._posted[partner]:
            return self._wait_of(self._ends[partner].rank)
        return self._ends[self._queues[self._queue_key[partner]][0]]


def _match(ends: list[End], transport: str) -> list[int | None]:
    """Return the other end of each end: the k-th send of a stream meets the k-th receive."""
    sends: dict[Hashable, list[int]] = defaultdict(list)
    receives: dict[Hashable, list[int]] = defaultdict(list)
    for index, end in enumerate(ends):
        (sends if end.step.op == "SEND" else receives)[stream_of(transport, end.channel)].append(index)
    partner: list[int | None] = [None] * len(ends)
    for stream, indices in sends.items():
        for send, receive in zip(indices, receives.get(stream, ()), strict=False):
            partner[send], partner[receive] = receive, send
    return partner
