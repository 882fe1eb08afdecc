"""Data-parallel collectives in their place, and STEP at the end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from cpipe.ir import Problem
from cpipe.plan.validate.layout import Layout, Step
from cpipe.plan.validate.report import Report

__all__ = ["check_collectives"]

_OF_MODE = {None: (), "ddp": ("ALL_REDUCE",), "zero1": ("ALL_GATHER", "REDUCE_SCATTER")}
_NAMES = ("ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE")


class _Stage(NamedTuple):
    """What a program does with one stage, by index in the program."""

    first_forward: Step | None
    last_gradient: Step | None
    collectives: dict[str, Step]
    waits: tuple[Step, ...]


def check_collectives(layout: Layout, programs: dict[int, list[Step]], problem: Problem | None, report: Report) -> None:
    """Check the collectives of every stage and that every program ends with its only STEP.

    Without a problem the mode is taken from the plan: all stages have the collectives of ZeRO-1, or of DDP, or none.
    The copies of stages are reduced in the same order on every rank, and no rank waits before its compute is done.
    """
    expected = _expected(layout, programs, problem, report)
    for rank, steps in programs.items():
        place = layout.programs[rank][0]
        _check_step(layout, rank, place, steps, report)
        stages = [stage for stage, device in enumerate(layout.placement) if device == rank]
        found: dict[int, list[Step]] = {stage: [] for stage in stages}
        for step in steps:
            if step.stage >= 0 and (step.group >= 0 or step.op in "FWB"):
                found[step.stage].append(step)
        for stage in stages:
            _check_stage(rank, place, stage, found[stage], expected, report)
    _check_copies(layout, programs, report)


def _check_copies(layout: Layout, programs: dict[int, list[Step]], report: Report) -> None:
    """The copies are reduced in one order, and no rank waits for them before it has done what others may need for it.

    Each rank runs its collectives one after the other: any two have those that both take part in in the same order, and
    no ring of ranks wait for each other.
    """
    copies = {index for index, group in layout.groups.items() if group.kind == "weight_copies"}
    posts: dict[int, dict[int, Step]] = {rank: {} for rank in programs}
    for rank, steps in programs.items():
        place = layout.programs[rank][0]
        needed = [step for step in steps if step.op in ("F", "D", "W", "B", "SEND")]
        last = max(needed, key=lambda step: step.at, default=None)
        for step in steps:
            if step.group in copies and step.op != "WAIT":
                posts[rank].setdefault(step.group, step)
            elif step.group in copies and last is not None and step.at < last.at:
                message = f"rank {rank}: {step} for the copies on other ranks comes before {last}, at ops[{last.at}]"
                report.step("early-wait", place, step.at, message)
    before = len(report)
    for rank, own in posts.items():
        for other in (other for other in posts if other < rank):
            shared = [group for group in posts[other] if group in own]
            order = [group for group in own if group in posts[other]]
            for expected, group in zip(shared, order, strict=True):
                if group != expected:
                    step, first = own[group], posts[other][expected]
                    message = f"rank {rank}: {step} comes before that of stage {own[expected].stage}, rank {other} "
                    message += f"runs them the other way round, from ops[{first.at}] on"
                    report.step("copies-order", layout.programs[rank][0], step.at, message)
                    break
    if len(report) == before:
        _check_ring(layout, posts, report)


def _check_ring(layout: Layout, posts: dict[int, dict[int, Step]], report: Report) -> None:
    """Run the reductions of all ranks: each when it is the next of every rank that takes part; some must be left last.

    Every two ranks agree on the order of theirs, so what stands still is a ring of three or more.
    """
    queues = {rank: deque(own) for rank, own in posts.items() if own}
    members = Counter(group for own in posts.values() for group in own)
    while queues:
        heads = Counter(queue[0] for queue in queues.values())
        free = [group for group, count in heads.items() if count == members[group]]
        if not free:
            rank, group = min((rank, queue[0]) for rank, queue in queues.items())
            step = posts[rank][group]
            others = ", ".join(f"{posts[other][queue[0]]} on rank {other}" for other, queue in sorted(queues.items()))
            message = f"rank {rank}: {step} can never run: those that come first wait for each other: {others}"
            report.step("copies-order", layout.programs[rank][0], step.at, message)
            return
        for group in free:
            for queue in queues.values():
                if queue and queue[0] == group:
                    queue.popleft()
        queues = {rank: queue for rank, queue in queues.items() if queue}


def _expected(
    layout: Layout, programs: dict[int, list[Step]], problem: Problem | None, report: Report
) -> tuple[str, ...]:
    if problem is not None:
        expected: tuple[str, ...] = _OF_MODE[problem.collectives.mode if problem.collectives else None]
    else:
        present = {step.op for steps in programs.values() for step in steps if step.group >= 0} & set(_NAMES)
        copied = layout.flow_length < layout.num_stages
        mode = "ddp" if copied or present == {"ALL_REDUCE"} else "zero1" if present or layout.groups else None
        expected = _OF_MODE[mode]
    grouped = {stage for group in layout.groups.values() for stage in group.stages}
    missing = set(range(layout.num_stages)) - grouped if expected else set()
    wanted = "weight_copies" if layout.flow_length < layout.num_stages else "data_parallel"
    for index, group in layout.groups.items():
        if group.kind != wanted:
            message = f"group {index} is of kind {group.kind}, a plan of {layout.plan.problem.flows} flows has {wanted}"
            report.header("group-kind", f"$.groups[{index}].kind", message)
    for stage in sorted(missing):
        report.header("group-stages", "$.groups", f"stage {stage} has collectives to run and no group")
    if layout.groups and not expected:
        report.header("group-stages", "$.groups", "there are groups, but the problem has no data parallelism")
    return expected


def _check_step(layout: Layout, rank: int, place: int, steps: Iterable[Step], report: Report) -> None:
    """STEP ends the program, once."""
    ends = [step.at for step in steps if step.op == "STEP"]
    last = len(layout.programs[rank][1].ops) - 1
    if not ends:
        report.rank("missing-step", place, f"rank {rank}: the program has no STEP")
    for index in ends[:-1]:
        report.step("early-step", place, index, f"rank {rank}: STEP is there more than once")
    if ends and ends[-1] != last:
        report.step("early-step", place, ends[-1], f"rank {rank}: STEP is not the last op, ops[{last}] is")


def _check_stage(
    rank: int, place: int, stage: int, steps: list[Step], expected: tuple[str, ...], report: Report
) -> None:
    """Each expected collective runs once; gathers before the first F, reductions after the last W or B; both waited."""
    found = _split(rank, place, steps, expected, report)
    waits = list(found.waits)
    for name in expected:
        collective = found.collectives.get(name)
        if collective is None:
            report.rank("missing-collective", place, f"rank {rank}: stage {stage} has no {name}")
            continue
        wait = next((step for step in waits if step.at > collective.at), None)
        if wait is None:
            report.step("missing-wait", place, collective.at, f"rank {rank}: {collective} is never waited for")
        else:
            waits.remove(wait)
        if name == "ALL_GATHER":
            first = found.first_forward
            late = wait if wait is not None else collective
            if first is not None and late.at > first.at:
                message = f"rank {rank}: {late} ({name}) comes after {first}, at ops[{first.at}]"
                report.step("collective-order", place, late.at, message)
        elif found.last_gradient is not None and found.last_gradient.at > collective.at:
            last = found.last_gradient
            message = f"rank {rank}: {collective} comes before {last}, at ops[{last.at}]: gradients are incomplete"
            report.step("collective-order", place, collective.at, message)
    for wait in waits:
        report.step("stray-wait", place, wait.at, f"rank {rank}: {wait} waits for no collective that was posted")


def _split(rank: int, place: int, steps: list[Step], expected: tuple[str, ...], report: Report) -> _Stage:
    """Sort the ops of a stage; report collectives that are there twice or should not be."""
    collectives: dict[str, Step] = {}
    for step in steps:
        if step.op not in _NAMES:
            continue
        if step.op not in expected:
            message = f"rank {rank}: {step}, expected {' and '.join(expected) or 'no collective'}"
            report.step("unexpected-collective", place, step.at, message)
        elif collectives.setdefault(step.op, step) is not step:
            message = f"rank {rank}: {step} is at ops[{collectives[step.op].at}] already"
            report.step("duplicate-collective", place, step.at, message)
    return _Stage(
        first_forward=next((step for step in steps if step.op == "F"), None),
        last_gradient=next((step for step in reversed(steps) if step.op in "WB"), None),
        collectives=collectives,
        waits=tuple(step for step in steps if step.op == "WAIT"),
    )
