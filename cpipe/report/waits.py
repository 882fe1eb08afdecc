"""Why ops start when they do, and the chain of ops and messages that makes the plan as long as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from cpipe.ir.explanation import Segment
from cpipe.report.view import MessageView, PlanView

__all__ = ["Cause", "Step", "causes", "critical_steps", "describe"]


class Cause(NamedTuple):
    """What an op waited for last.

    ``start``: for nothing; ``device``: the op before it on its rank; ``input``: an op of its own rank; ``message``: a
    message; ``gather``: a collective; ``unknown``: nothing that the plan shows. `at` is the index of the op, message or
    collective, -1 for none.
    """

    kind: Literal["start", "device", "input", "message", "gather", "unknown"]
    at: int = -1


class Step(NamedTuple):
    """One link of the critical chain, by index."""

    kind: Literal["op", "message", "collective"]
    at: int


def causes(view: PlanView) -> tuple[Cause, ...]:
    """Return what each op waited for last: of what ended just as it starts, its device before its inputs.

    Where nobody knows when a message arrives, an op that starts after everything else it needs waited for that.
    """
    gathers = {view.collectives[i].stage: i for i in range(len(view.collectives)) if view.collectives[i].kind == "G"}
    return tuple(_cause(view, index, gathers) for index in range(len(view.ops)))


def _cause(view: PlanView, index: int, gathers: dict[int, int]) -> Cause:
    op = view.ops[index]
    ends: list[tuple[int, Cause]] = [(0, Cause("start"))]
    if op.previous >= 0:
        ends.append((view.ops[op.previous].end, Cause("device", op.previous)))
    if op.kind == "F" and op.stage in gathers:
        ends.append((view.collectives[gathers[op.stage]].end, Cause("gather", gathers[op.stage])))
    unknown = -1
    for producer, message in view.inputs[index]:
        window = view.messages[message].window if message >= 0 else None
        if message < 0:
            ends.append((view.ops[producer].end, Cause("input", producer)))
        elif window is None:
            unknown = message
        else:
            ends.append((window.arrival, Cause("message", message)))
    if op.start == 0:
        return Cause("start")
    latest = max(end for end, _ in ends)
    if latest == op.start:
        return next(cause for end, cause in ends if end == latest)
    return Cause("unknown") if unknown < 0 else Cause("message", unknown)


def critical_steps(view: PlanView, why: tuple[Cause, ...] | None = None) -> tuple[Step, ...]:
    """Return the chain that ends last, first step first: each step begins the moment the one before it ends.

    Of a replay it is the simulator's own; steps that take no time are left out there. Of a plan alone it is followed
    backwards from the last completion through what each op waited for, and what each message waited for: its
    producer, the message before it on its pipe, or the op after which it was posted. It stops early where the times
    of the plan do not say what was waited for.
    """
    if view.path is not None:
        return tuple(dict.fromkeys(_steps_of(view, view.path)))
    walk = _Walk(view, causes(view) if why is None else why)
    return tuple(walk.back())[::-1]


def _steps_of(view: PlanView, path: Sequence[Segment]) -> Iterator[Step]:
    """Yield what the pieces of a critical path are in the view; those of ops that it does not have are left out."""
    ops = {(view.ranks[op.rank].rank, op.start, op.label): index for index, op in enumerate(view.ops)}
    runs = {(view.ranks[run.rank].rank, run.start, run.end): index for index, run in enumerate(view.collectives)}
    messages: dict[tuple[str, str | None], int] = {
        (view.ops[message.producer].label, view.channels[message.channel].carries): index
        for index, message in enumerate(view.messages)
    }
    for piece in path:
        index: int | None
        if piece.kind == "compute":
            kind, index = "op", ops.get((piece.device, piece.start_ns, piece.label))
        elif piece.kind == "collective":
            kind, index = "collective", runs.get((piece.device, piece.start_ns, piece.end_ns))
        else:
            kind, index = "message", messages.get((piece.label, piece.carries))
        if index is not None:
            yield Step(kind, index)  # type: ignore[arg-type]


class _Walk:
    """The look-ups of one walk back from the end."""

    def __init__(self, view: PlanView, why: tuple[Cause, ...]) -> None:
        self._view = view
        self._why = why
        self._op_at = {(op.rank, op.end): index for index, op in enumerate(view.ops)}
        self._left: dict[tuple[int | None, int], int] = {}
        for index, message in enumerate(view.messages):
            if message.window is not None and message.window.start < message.window.end:
                self._left[view.channels[message.channel].pipe, message.window.end] = index

    def back(self) -> Iterator[Step]:
        """Yield the chain, last step first; no step twice, whatever the times."""
        view = self._view
        lasts = [(op.end, Step("op", index)) for index, op in enumerate(view.ops)]
        lasts += [(run.end, Step("collective", index)) for index, run in enumerate(view.collectives)]
        step: Step | None = max(lasts, key=lambda last: last[0])[1] if lasts else None
        seen: set[Step] = set()
        while step is not None and step not in seen:
            seen.add(step)
            yield step
            step = self._before(step)

    def _before(self, step: Step) -> Step | None:
        if step.kind == "message":
            return self._before_message(self._view.messages[step.at])
        if step.kind == "collective":
            run = self._view.collectives[step.at]
            return self._ended(run.rank, run.start) or self._collective_before(run.rank, run.start)
        cause = self._why[step.at]
        if cause.kind in ("device", "input"):
            return Step("op", cause.at)
        if cause.kind == "message":
            return Step("message", cause.at)
        return Step("collective", cause.at) if cause.kind == "gather" else None

    def _before_message(self, message: MessageView) -> Step | None:
        if message.window is None or message.window.start == message.ready:
            return Step("op", message.producer)
        channel = self._view.channels[message.channel]
        earlier = self._left.get((channel.pipe, message.window.start)) if channel.pipe is not None else None
        if earlier is not None:
            return Step("message", earlier)
        posted = self._ended(channel.target, message.window.start) or self._ended(channel.source, message.window.start)
        return posted or Step("op", message.producer)

    def _ended(self, rank: int, time: int) -> Step | None:
        index = self._op_at.get((rank, time)) if time > 0 else None
        return None if index is None else Step("op", index)

    def _collective_before(self, rank: int, time: int) -> Step | None:
        runs = self._view.collectives
        found = [index for index, run in enumerate(runs) if run.rank == rank and run.end == time and run.start < time]
        return Step("collective", found[-1]) if found else None


def describe(view: PlanView, cause: Cause) -> str:
    """Return what was waited for, in words; names are the user's."""
    if cause.kind == "device":
        return f"{view.ops[cause.at].label}, the op before it"
    if cause.kind == "input":
        return f"{view.ops[cause.at].label}, on the same device"
    if cause.kind == "gather":
        return f"the all-gather of stage {view.collectives[cause.at].stage}"
    if cause.kind == "message":
        message = view.messages[cause.at]
        made = view.ops[message.producer]
        carries = view.channels[message.channel].carries
        return f"the {carries} of {made.label} from {view.ranks[made.rank].device}"
    return "nothing" if cause.kind == "start" else "what the plan does not say"
