"""One order of ops and messages for all ranks, for runtimes that block in every send and receive.

Each rank keeps to it, so that the first of what is left can always run: no two ranks ever wait for each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from cpipe.ir import Instruction, Plan
from cpipe.plan.exchange.refusal import compute_places

__all__ = ["Event", "rendezvous_order"]


class Event(NamedTuple):
    """A compute op or a message; `stage` computes or sends."""

    kind: str
    stage: int
    mb: int

    @property
    def is_message(self) -> bool:
        """Whether two ranks take part."""
        return self.kind in ("activation", "gradient")

    @property
    def reader(self) -> int:
        """The stage that receives the message."""
        return self.stage + (1 if self.kind == "activation" else -1)


def _computes(plan: Plan) -> dict[Event, Instruction]:
    """Return the compute ops, rank by rank in the plan's order."""
    programs = sorted(range(len(plan.ranks)), key=lambda index: plan.ranks[index].rank)
    return {
        Event(place.step.op, place.step.stage or 0, place.step.mb or 0): place.step
        for index in programs
        for place in compute_places(plan, index)
    }


def rendezvous_order(plan: Plan) -> Iterator[Event]:
    """Yield ops and messages of a valid plan of F and B, a stage on each rank in line: as early as the plan has them.

    An op stands at its start, a message at the end of its maker, but a gradient not before its reader has run the
    backward before the one that it is for.
    """
    computes = _computes(plan)
    last = plan.problem.stages - 1
    times: dict[Event, int] = {event: step.start_ns or 0 for event, step in computes.items()}
    followers: dict[Event, list[Event]] = defaultdict(list)
    waiting: Counter[Event] = Counter()

    def follow(first: Event, then: Event) -> None:
        followers[first].append(then)
        waiting[then] += 1

    before: dict[int, Event] = {}
    for event, step in computes.items():
        if event.stage in before:
            follow(before[event.stage], event)
        before[event.stage] = event
        message = Event("activation" if event.kind == "F" else "gradient", event.stage, event.mb)
        if not 0 <= message.reader <= last:
            continue
        times[message] = step.end_ns or 0
        follow(event, message)
        follow(message, Event(event.kind, message.reader, event.mb))
        if event.kind == "B" and event.mb:
            follow(Event("B", message.reader, event.mb - 1), message)

    ready = [(times[event], not event.is_message, event) for event in times if not waiting[event]]
    heapify(ready)
    while ready:
        *_, event = heappop(ready)
        yield event
        for then in followers[event]:
            waiting[then] -= 1
            if not waiting[then]:
                heappush(ready, (times[then], not then.is_message, then))
