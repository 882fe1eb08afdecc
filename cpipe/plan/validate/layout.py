"""The header of a plan: counts, placement, ranks, channels and groups; what stands is kept as a `Layout`."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

from cpipe.ir import Channel, Group, Plan, RankProgram
from cpipe.plan.validate.report import Report

__all__ = ["Layout", "Step", "check_layout"]

_GRADIENT_OPS = ("D", "B")


class Step(NamedTuple):
    """A well-formed instruction, `at` its index in the program; what its op does not have is -1.

    An FB is two of them with the same `at`, F and then B, both `fused`.
    """

    at: int
    op: str
    stage: int
    mb: int
    channel: int
    group: int
    start_ns: int
    end_ns: int
    fused: bool = False
    copy: str = ""

    def __str__(self) -> str:
        """Return the op for messages: ``F of stage 2 mb 0``."""
        if self.op == "STEP":
            return self.op
        microbatch = f" mb {self.mb}" if self.mb >= 0 else ""
        what = f"{self.op} for the {self.copy}" if self.copy else self.op
        return f"{what} of stage {self.stage}{microbatch}" + (" in its FB" if self.fused else "")


class Layout:
    """What the other checks may rely on.

    Attributes
    ----------
    num_ranks, num_stages, microbatches
        Sane counts: those of the lists that are really there.
    flow_length
        Stages of each flow; all of them when the plan states flows that cannot be.
    placement
        Rank of each stage; -1 where the plan names none that exists.
    channels, groups
        Those that are well formed, by id.
    programs
        By rank: the first program of that rank and its index in ``$.ranks``.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.num_ranks = len(plan.ranks)
        self.num_stages = len(plan.problem.placement)
        self.microbatches = plan.problem.microbatches
        flows = plan.problem.flows
        self.flow_length = self.num_stages // flows if flows >= 1 and self.num_stages % flows == 0 else self.num_stages
        self.placement = [rank if 0 <= rank < self.num_ranks else -1 for rank in plan.problem.placement]
        self.channels: dict[int, Channel] = {}
        self.groups: dict[int, Group] = {}
        self.programs: dict[int, tuple[int, RankProgram]] = {}

    def source_of(self, op: str, stage: int) -> int:
        """Return the rank on which the input of F, D or B of `stage` is made; -1 when it needs none."""
        feeder = self.neighbour(stage, -1 if op == "F" else 1)
        return self.placement[feeder] if feeder >= 0 else -1

    def target_of(self, op: str, stage: int) -> int:
        """Return the rank that needs the output of F, D or B of `stage`; -1 when none does."""
        reader = self.neighbour(stage, 1 if op == "F" else -1)
        return self.placement[reader] if reader >= 0 else -1

    def neighbour(self, stage: int, shift: int) -> int:
        """Return the stage `shift` further in the same flow; -1 beyond its ends."""
        other = stage + shift
        return other if 0 <= other < self.num_stages and self.flow_of(other) == self.flow_of(stage) else -1

    def flow_of(self, stage: int) -> int:
        """Return which flow a stage belongs to."""
        return stage // max(1, self.flow_length)

    @staticmethod
    def carries(op: str) -> Literal["activation", "gradient"]:
        """Return what the op reads and makes: gradients for D and B, activations for F."""
        return "gradient" if op in _GRADIENT_OPS else "activation"


def check_layout(plan: Plan, report: Report) -> Layout:
    """Check the header; return what of it can be relied on."""
    layout = Layout(plan)
    _check_counts(layout, report)
    _check_ranks(layout, report)
    _check_channels(layout, report)
    _check_groups(layout, report)
    return layout


def _check_counts(layout: Layout, report: Report) -> None:
    problem = layout.plan.problem
    for name, count, listed in (("devices", layout.num_ranks, "ranks"), ("stages", layout.num_stages, "placement")):
        stated = getattr(problem, name)
        if stated != count or stated < 1:
            report.header("count", f"$.problem.{name}", f"{stated} {name}, but {listed} has {count}")
    if problem.microbatches < 1:
        report.header("count", "$.problem.microbatches", f"expected at least 1 microbatch, got {problem.microbatches}")
    if problem.flows < 1 or layout.num_stages % problem.flows:
        message = f"{layout.num_stages} stages cannot be {problem.flows} flows of equal length"
        report.header("count", "$.problem.flows", message)
    for stage, rank in enumerate(problem.placement):
        if layout.placement[stage] < 0:
            message = f"stage {stage} is placed on rank {rank}, ranks are 0..{layout.num_ranks - 1}"
            report.header("placement", f"$.problem.placement[{stage}]", message)
    if list(problem.recompute) != sorted({stage for stage in problem.recompute if 0 <= stage < layout.num_stages}):
        message = f"expected different stages of 0..{layout.num_stages - 1} in order, got {list(problem.recompute)}"
        report.header("recompute", "$.problem.recompute", message)
    peaks = len(layout.plan.claims.peak_bytes)
    if peaks != layout.num_ranks:
        report.header("count", "$.claims.peak_bytes", f"{peaks} peaks for {layout.num_ranks} ranks")


def _check_ranks(layout: Layout, report: Report) -> None:
    for place, program in enumerate(layout.plan.ranks):
        if not 0 <= program.rank < layout.num_ranks:
            report.rank("rank", place, f"rank {program.rank} is not in 0..{layout.num_ranks - 1}")
        elif program.rank in layout.programs:
            report.rank("rank", place, f"rank {program.rank} has a second program")
        else:
            layout.programs[program.rank] = (place, program)
            if program.rank != place:
                message = f"expected rank {place} here, got {program.rank}: programs stand in the order of their ranks"
                report.rank("rank", place, message)
    for rank in range(layout.num_ranks):
        if rank not in layout.programs:
            report.header("rank", "$.ranks", f"rank {rank} has no program")


def _check_channels(layout: Layout, report: Report) -> None:
    seen: dict[tuple[int, int, str], int] = {}
    for index, channel in enumerate(layout.plan.channels):
        path = f"$.channels[{index}]"
        ends = (channel.source, channel.target, channel.carries)
        if channel.id != index:
            report.header("channel-id", f"{path}.id", f"ids count up from 0: expected {index}, got {channel.id}")
        elif min(ends[:2]) < 0 or max(ends[:2]) >= layout.num_ranks:
            message = f"channel {index} joins ranks {ends[0]} and {ends[1]}, ranks are 0..{layout.num_ranks - 1}"
            report.header("channel-ends", path, message)
        elif channel.source == channel.target:
            report.header("channel-ends", path, f"channel {index} joins rank {ends[0]} with itself")
        elif ends in seen:
            message = f"channels {seen[ends]} and {index} both carry {ends[2]}s from rank {ends[0]} to rank {ends[1]}"
            report.header("channel-twice", path, message)
        else:
            seen[ends] = index
            layout.channels[index] = channel


def _check_groups(layout: Layout, report: Report) -> None:
    members = Counter(stage for group in layout.plan.groups for stage in group.stages)
    for index, group in enumerate(layout.plan.groups):
        path = f"$.groups[{index}]"
        ranks = {layout.placement[stage] if 0 <= stage < layout.num_stages else -1 for stage in group.stages}
        if group.id != index:
            report.header("group-id", f"{path}.id", f"ids count up from 0: expected {index}, got {group.id}")
        elif -1 in ranks:
            report.header("group-stages", f"{path}.stages", f"group {index} names a stage that does not exist")
        elif group.kind == "data_parallel" and len(ranks) != 1:
            message = f"group {index} has stages of {len(ranks)} ranks, expected one rank"
            report.header("group-stages", f"{path}.stages", message)
        elif group.kind == "weight_copies" and group.stages != _copies(layout, group):
            message = (
                f"group {index} has stages {_listed(group.stages)}, the copies are {_listed(_copies(layout, group))}"
            )
            report.header("group-stages", f"{path}.stages", message)
        elif group.kind == "weight_copies" and len(ranks) != len(group.stages):
            message = f"group {index} has {len(group.stages)} copies on {len(ranks)} ranks, expected one on each"
            report.header("group-stages", f"{path}.stages", message)
        else:
            layout.groups[index] = group
        for stage in group.stages:
            if members[stage] > 1:
                report.header("group-stages", f"{path}.stages", f"stage {stage} is in more than one group")


def _copies(layout: Layout, group: Group) -> tuple[int, ...]:
    """Return the stages that stand at the same place of each flow as the first of a group."""
    first = group.stages[0] % max(1, layout.flow_length) if group.stages else 0
    return tuple(range(first, layout.num_stages, max(1, layout.flow_length)))


def _listed(stages: tuple[int, ...]) -> str:
    return ", ".join(map(str, stages)) or "none"
