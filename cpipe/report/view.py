"""What a picture of a plan shows: ops, messages and collectives with their times, and what feeds what.

The times are the plan's own, or those of its replay on a profile. Only a replay knows when a message leaves and
arrives; a plan alone says when it is ready (its op ends) and when it is read (the next op starts).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec.structs import replace

from cpipe.ir import Plan, Problem, Timeline
from cpipe.ir.explanation import Segment
from cpipe.report.figures import DeviceFigures

__all__ = ["ChannelView", "CollectiveView", "Input", "MessageView", "OpView", "PlanView", "RankView", "Window"]


class OpView(NamedTuple):
    """A compute op: `rank` is its place in `PlanView.ranks`, `previous` the op before it there (-1: none); [ns].

    `backward` has stage and microbatch of the backward half of an op that is a forward and a backward at once.
    """

    rank: int
    kind: str
    stage: int
    mb: int
    start: int
    end: int
    previous: int
    backward: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """Its text form, stage first: ``2F0``; of a pair ``2F1+2B0``."""
        if self.backward is None:
            return f"{self.stage}{self.kind}{self.mb}"
        return f"{self.stage}F{self.mb}+{self.backward[0]}B{self.backward[1]}"


class CollectiveView(NamedTuple):
    """A data-parallel collective of `stage`; `kind` is its letter; [ns]."""

    rank: int
    kind: str
    stage: int
    start: int
    end: int

    @property
    def label(self) -> str:
        """Its text form: ``G2``."""
        return f"{self.kind}{self.stage}"


class Window(NamedTuple):
    """When a message holds its pipe (`start` to `end`), and when it arrives [ns]."""

    start: int
    end: int
    arrival: int


class MessageView(NamedTuple):
    """A message: indices of its channel, of the op that makes it and of the op that reads it; [ns].

    `window` is None where nobody knows it: without a replay.
    """

    channel: int
    stage: int
    mb: int
    producer: int
    consumer: int
    ready: int
    read: int
    window: Window | None

    @property
    def span(self) -> tuple[int, int]:
        """From when to when it is drawn [ns]: until it arrives, or, where that is not known, until it is read."""
        return (self.window.start, self.window.arrival) if self.window else (self.ready, max(self.ready, self.read))


class ChannelView(NamedTuple):
    """A channel from `source` to `target` (places in `PlanView.ranks`); `pipe` is an index, None if not known."""

    id: int
    source: int
    target: int
    carries: Literal["activation", "gradient"]
    pipe: int | None
    messages: tuple[int, ...]


class RankView(NamedTuple):
    """One rank, and its ops and collectives by index, in its order."""

    rank: int
    device: str
    ops: tuple[int, ...]
    collectives: tuple[int, ...]


class Input(NamedTuple):
    """What an op reads: made by `producer`; `message` brings it, -1 within a device."""

    producer: int
    message: int


class PlanView(NamedTuple):
    """A plan as pictures show it.

    Attributes
    ----------
    plan
        With the times shown, its claims too.
    problem, timeline
        Of the replay, or None.
    bound_ns
        Proven lower bound [ns], of the plan's objective; None where it is of another job.
    figures
        In the order of `ranks`.
    ranks, ops, messages, collectives, channels
        Everything, referred to by index.
    inputs
        Of each op.
    horizon
        The end of the picture: nothing ends later [ns].
    visible
        Which of `ranks` are drawn, by place; what depends on others is still known.
    path
        The critical path of the replay, or None.
    """

    plan: Plan
    problem: Problem | None
    timeline: Timeline | None
    bound_ns: int | None
    figures: tuple[DeviceFigures, ...]
    ranks: tuple[RankView, ...]
    ops: tuple[OpView, ...]
    messages: tuple[MessageView, ...]
    collectives: tuple[CollectiveView, ...]
    channels: tuple[ChannelView, ...]
    inputs: tuple[tuple[Input, ...], ...]
    horizon: int
    visible: tuple[int, ...]
    path: tuple[Segment, ...] | None

    @property
    def reached_ns(self) -> int:
        """What the bound is of [ns]: the makespan, or the span where that was the objective."""
        claims = self.plan.claims
        return (claims.span_ns or claims.makespan_ns) if claims.objective == "span" else claims.makespan_ns

    @property
    def gap(self) -> float | None:
        """(objective - lower bound) / objective, in [0, 1]; None without a bound."""
        if self.bound_ns is None:
            return None
        return max(0.0, (self.reached_ns - self.bound_ns) / self.reached_ns) if self.reached_ns > 0 else 0.0

    @property
    def kinds(self) -> set[str]:
        """The kinds of ops and collectives that take time."""
        ops = {op.kind for op in self.ops if op.start < op.end}
        return ops | {run.kind for run in self.collectives if run.start < run.end}

    @property
    def shown_figures(self) -> tuple[DeviceFigures, ...]:
        """Figures of the ranks that are drawn."""
        return tuple(self.figures[place] for place in self.visible)

    def only_ranks(self, ranks: Iterable[int]) -> PlanView:
        """Return the view of the same plan that draws `ranks` (by number) alone."""
        wanted = set(ranks)
        return self._replace(visible=tuple(i for i, rank in enumerate(self.ranks) if rank.rank in wanted))

    def shown_plan(self) -> Plan:
        """Return the plan with the programs of the ranks that are drawn, for a chart of them; it is none to run."""
        return replace(self.plan, ranks=tuple(self.plan.ranks[place] for place in self.visible))

    def channels_of(self, place: int) -> list[int]:
        """Return the channels that the rank at `place` sends on."""
        return [number for number, channel in enumerate(self.channels) if channel.source == place]

    def channel_name(self, index: int) -> str:
        """Return the name of a channel: ``g0 to g1, activation``."""
        channel = self.channels[index]
        return f"{self.ranks[channel.source].device} to {self.ranks[channel.target].device}, {channel.carries}"
