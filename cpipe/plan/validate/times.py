"""The times a plan states: against the replay, or without a problem against each other."""

from __future__ import annotations

from cpipe.ir import Problem
from cpipe.plan.validate.compute import Computed
from cpipe.plan.validate.layout import Layout, Step
from cpipe.plan.validate.replay import replay
from cpipe.plan.validate.report import Report

__all__ = ["check_replay", "check_stated_times"]


def check_replay(layout: Layout, programs: dict[int, list[Step]], problem: Problem, report: Report) -> None:
    """Replay the plan; every op must start and end when it says so, and the last one at the makespan.

    One op that is late makes all after it late: a rank's first difference is reported, with the number of others.
    """
    outcome = replay(layout, programs, problem)
    for rank, step in outcome.blocked.items():
        place = layout.programs[rank][0]
        message = f"rank {rank}: {step} never ends: a message before it on a pipe of this network cannot leave"
        report.step("cannot-finish", place, step.at, message)
    if outcome.blocked:
        return
    for rank, steps in programs.items():
        times = outcome.times[rank]
        timed = [step for step in steps if step.at in times and not (step.fused and step.op == "B")]
        wrong = [step for step in timed if times[step.at] != (step.start_ns, step.end_ns)]
        if wrong:
            step = wrong[0]
            start, end = times[step.at]
            others = f" (and {len(wrong) - 1} more on this rank)" if len(wrong) > 1 else ""
            message = (
                f"rank {rank}: {step} runs from {start} to {end} ns, "
                f"the plan says {step.start_ns} to {step.end_ns} ns{others}"
            )
            report.step("wrong-time", layout.programs[rank][0], step.at, message)
    if not problem.step_ns:
        _check_no_step(layout, programs, report)
    _check_makespan(layout, outcome.makespan_ns, report)
    _check_span(layout, [_without_step(steps, outcome.times[rank]) for rank, steps in programs.items()], report)


def check_stated_times(
    layout: Layout, programs: dict[int, list[Step]], computed: Computed, complete: bool, report: Report
) -> None:
    """Check what must hold on every network: no overlap on a rank, nothing before its input.

    When the programs are `complete`, the last op must end at the claimed makespan.
    """
    for rank, steps in programs.items():
        _check_rank_times(rank, layout.programs[rank][0], steps, report)
    _check_step_times(layout, programs, report)
    _check_copy_times(layout, programs, report)
    for (phase, stage, mb), step in computed.items():
        feeder = (phase, layout.neighbour(stage, -1 if phase == "F" else 1), mb)
        made = computed.get(feeder) if phase != "W" else None
        if made is not None and step.start_ns < made.end_ns:
            rank = layout.placement[stage]
            message = f"rank {rank}: {step} starts at {step.start_ns} ns, its input {made} ends at {made.end_ns} ns"
            report.step("before-input", layout.programs[rank][0], step.at, message)
    if complete:
        last = max((step.end_ns for steps in programs.values() for step in steps), default=0)
        _check_makespan(layout, max(0, last), report)
        timed = frozenset(("F", "D", "W", "B", "ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE"))
        stated = [[(step.start_ns, step.end_ns) for step in steps if step.op in timed] for steps in programs.values()]
        _check_span(layout, stated, report)


def _check_rank_times(rank: int, place: int, steps: list[Step], report: Report) -> None:
    """Ops do not overlap; gathers end before the first F of their stage, reductions start after its last W or B.

    Copies of one direction do not overlap either; they start after what is before them, and who waits waits.
    """
    _check_move_times(rank, place, steps, report)
    before: Step | None = None
    gathered: dict[int, Step] = {}
    reducible: dict[int, Step] = {}
    for step in steps:
        need: Step | None = None
        if step.op == "ALL_GATHER":
            gathered[step.stage] = step
        elif step.op in ("REDUCE_SCATTER", "ALL_REDUCE"):
            need = reducible.get(step.stage)
        elif step.op in ("F", "D", "W", "B"):
            if before is not None and step.start_ns < before.end_ns and step.at != before.at:
                message = f"rank {rank}: {step} starts at {step.start_ns} ns, {before} ends at {before.end_ns} ns"
                report.step("overlap", place, step.at, message)
            before = step
            need = gathered.pop(step.stage, None) if step.op == "F" else None
            if step.op in ("W", "B"):
                reducible[step.stage] = step
        if need is not None and step.start_ns < need.end_ns:
            message = f"rank {rank}: {step} starts at {step.start_ns} ns, {need} ends at {need.end_ns} ns"
            report.step("before-input", place, step.at, message)


def _check_move_times(rank: int, place: int, steps: list[Step], report: Report) -> None:
    """Copies take turns each way; what is behind a WAIT for one starts after it, a copy after what it needs."""
    last: dict[str, Step] = {}
    copies: dict[tuple[str, int, int], Step] = {}
    awaited: Step | None = None  # of the copies waited for, the one that ends last
    computed: Step | None = None
    for step in steps:
        need: Step | None = None
        if step.copy:
            copy = copies.get((step.copy, step.stage, step.mb))
            if copy is not None and (awaited is None or copy.end_ns > awaited.end_ns):
                awaited = copy
        elif step.op in ("OFFLOAD", "RELOAD"):
            copies.setdefault((step.op, step.stage, step.mb), step)
            needs = [entry for entry in (last.get(step.op), computed, awaited) if entry is not None]
            need = max(needs, key=lambda entry: entry.end_ns, default=None)
            last[step.op] = step
        elif step.op in ("F", "D", "W", "B"):
            computed, need = step, awaited
        if need is not None and step.start_ns < need.end_ns:
            message = f"rank {rank}: {step} starts at {step.start_ns} ns, {need} ends at {need.end_ns} ns"
            report.step("before-input", place, step.at, message)


def _check_step_times(layout: Layout, programs: dict[int, list[Step]], report: Report) -> None:
    """A STEP that takes time is the same on all ranks: it begins when the last of them has finished."""
    steps = [(rank, step) for rank, program in programs.items() for step in program if step.op == "STEP"]
    if all(step.start_ns < 0 for _, step in steps):
        return
    last = max((step.end_ns for program in programs.values() for step in program if step.op != "STEP"), default=0)
    end = max(step.end_ns for _, step in steps)
    for rank, step in steps:
        if (step.start_ns, step.end_ns) != (max(0, last), end):
            stated = "no times" if step.start_ns < 0 else f"{step.start_ns} to {step.end_ns} ns"
            message = f"rank {rank}: {step} states {stated}, expected {max(0, last)} to {end} ns as on all ranks"
            report.step("step-time", layout.programs[rank][0], step.at, message)


def _check_no_step(layout: Layout, programs: dict[int, list[Step]], report: Report) -> None:
    """Where nothing is done together at the end, no STEP states times."""
    for rank, program in programs.items():
        for step in program:
            if step.op == "STEP" and step.start_ns >= 0:
                message = f"rank {rank}: STEP states {step.start_ns} to {step.end_ns} ns, the problem has no such step"
                report.step("step-time", layout.programs[rank][0], step.at, message)


def _check_copy_times(layout: Layout, programs: dict[int, list[Step]], report: Report) -> None:
    """The reduction over the copies of a stage is one op: it has the same times on all of their ranks."""
    first: dict[int, tuple[int, Step]] = {}
    for rank, program in programs.items():
        for step in program:
            if step.op != "ALL_REDUCE" or layout.groups[step.group].kind != "weight_copies":
                continue
            other, same = first.setdefault(step.group, (rank, step))
            if (step.start_ns, step.end_ns) != (same.start_ns, same.end_ns):
                message = (
                    f"rank {rank}: {step} runs from {step.start_ns} to {step.end_ns} ns, "
                    f"that of its copy on rank {other} from {same.start_ns} to {same.end_ns} ns"
                )
                report.step("copies-time", layout.programs[rank][0], step.at, message)


def _without_step(steps: list[Step], times: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the times of all ops and collectives of a rank."""
    return [times[step.at] for step in steps if step.at in times and step.op != "STEP"]


def _check_makespan(layout: Layout, makespan_ns: int, report: Report) -> None:
    claims = layout.plan.claims
    if claims.makespan_ns != makespan_ns:
        message = f"the last op ends at {makespan_ns} ns, the plan says {claims.makespan_ns} ns"
        report.header("wrong-makespan", "$.claims.makespan_ns", message)


def _check_span(layout: Layout, times: list[list[tuple[int, int]]], report: Report) -> None:
    """Check a claimed span against `times`: the (start, end) of every op and collective, by rank."""
    claimed = layout.plan.claims.span_ns
    if claimed is None:
        return
    span = max((max(end for _, end in rank) - min(start for start, _ in rank) for rank in times if rank), default=0)
    if claimed != span:
        message = f"the longest span of a rank is {span} ns, the plan says {claimed} ns"
        report.header("wrong-span", "$.claims.span_ns", message)
