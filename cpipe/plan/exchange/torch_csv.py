"""Plan -> torch's schedule table, in both layouts of `torch.distributed.pipelining` 2.13.

``compute_only`` holds F, I (cpipe's D), W, B and ``OVERLAP_F_B`` (cpipe's FB); torch places messages and collectives
itself. ``compute_comms`` is run as it stands: messages where the plan posts them, ``REDUCE_GRAD`` once a stage, after
its last W or B (without it torch leaves gradients too large by the number of microbatches), and for stages under FSDP
``UNSHARD`` and ``RESHARD``. A WAIT has no cell: torch waits as it computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from cpipe.errors import Diagnostic
from cpipe.ir import Instruction, Plan, RankProgram
from cpipe.plan.exchange.cells import Cell, units_of
from cpipe.plan.exchange.refusal import offload_faults
from cpipe.plan.validate import validate

__all__ = ["LAYOUTS", "torch_csv", "torch_faults"]

LAYOUTS = ("compute_only", "compute_comms")

_COMPUTE = {"F": "F", "D": "I", "W": "W", "B": "B", "FB": "F"}
_REDUCE = ("REDUCE_SCATTER", "ALL_REDUCE")


def torch_faults(
    plan: Plan, *, layout: str = "compute_only", fsdp: bool = False, file: str | None = None
) -> tuple[Diagnostic, ...]:
    """Return why torch cannot run `plan` as it is meant, each reason with the first op that breaks it; empty if it can.

    Torch's runtime puts all messages of a pipeline on one process group, where those from one rank to another are
    matched by order alone: ``compute_comms`` needs a plan that is right under the transport ``gloo``.
    """
    transport = "gloo" if layout == "compute_comms" else "channels"
    faults = [fault for fault in validate(plan, file=file, transport=transport) if fault.severity == "error"]
    if faults:
        if layout == "compute_comms" and any(fault.code in ("swapped", "deadlock") for fault in faults):
            hint = "torch puts all messages on one group; with --format compute_only it places them itself"
            faults[-1] = replace(faults[-1], hint=hint)
        return tuple(faults)
    faults += offload_faults(plan, "torch", file)
    if plan.problem.flows > 1:
        message = f"the plan has {plan.problem.flows} flows over copies of the weights, torch's table has one"
        faults.append(Diagnostic(code="torch-flows", message=message, file=file, path="$.problem.flows"))
    for place, program in enumerate(plan.ranks):
        if not any(step.op in _COMPUTE for step in program.ops):
            message = f"rank {program.rank} has no stage: torch needs at least one on every rank"
            faults.append(Diagnostic(code="torch-idle-rank", message=message, file=file, path=f"$.ranks[{place}]"))
    faults += _data_parallel_faults(plan, layout, fsdp, file)
    return tuple(faults)


def torch_csv(plan: Plan, *, layout: str = "compute_only", fsdp: bool = False) -> str:
    """Return the table of a plan without `torch_faults`.

    Parameters
    ----------
    plan
        A valid plan.
    layout
        One of `LAYOUTS`.
    fsdp
        Write ``UNSHARD`` and ``RESHARD`` (``compute_comms`` only): where the plan gathers parameters (ZeRO-1), else
        one stage ahead of its first F.

    Returns
    -------
    str
        One line a rank, rank 0 first.
    """
    carries = {channel.id: channel.carries for channel in plan.channels}
    lines = []
    for program in sorted(plan.ranks, key=lambda program: program.rank):
        cells = _with_messages(program, carries, fsdp) if layout == "compute_comms" else _computes(program)
        lines.append(",".join(_texts(list(cells))) + "\n")
    return "".join(lines)


def _data_parallel_faults(plan: Plan, layout: str, fsdp: bool, file: str | None) -> Iterator[Diagnostic]:
    """Yield what of the plan's data parallelism torch cannot do."""
    steps = [(place, at, step) for place, program in enumerate(plan.ranks) for at, step in enumerate(program.ops)]
    names = {step.op for *_, step in steps}
    reason, wanted = "", ""
    if "ALL_REDUCE" in names and "D" in names:
        wanted, reason = "D", "under DDP torch leaves the gradients of a split backward unreduced"
    elif "ALL_REDUCE" in names and fsdp:
        wanted, reason = "ALL_REDUCE", "the plan is for DDP, not for FSDP"
    elif "ALL_GATHER" in names and layout == "compute_comms" and not fsdp:
        wanted, reason = "ALL_GATHER", "torch gathers parameters only for stages under FSDP (--fsdp)"
    for place, at, step in steps:
        if step.op == wanted:
            message = f"rank {plan.ranks[place].rank}: {step.op} of stage {step.stage}: {reason}"
            path = f"$.ranks[{place}].ops[{at}]"
            yield Diagnostic(code="torch-data-parallel", message=message, file=file, path=path)
            return


def _computes(program: RankProgram) -> Iterator[Cell]:
    for step in program.ops:
        if step.op in _COMPUTE:
            yield from _compute(program, step)


def _compute(program: RankProgram, step: Instruction) -> Iterator[Cell]:
    """Yield the cell of a compute op, or the two of an FB."""
    if step.op != "FB":
        yield _cell(program, step, _COMPUTE[step.op])
        return
    backward = replace(step, stage=step.backward_stage, mb=step.backward_mb)
    yield _cell(program, step, "F")._replace(fused=True)
    yield _cell(program, backward, "B")._replace(fused=True)


def _texts(cells: Sequence[Cell]) -> Iterator[str]:
    for unit in units_of(cells):
        yield str(unit[0]) if len(unit) == 1 else f"({';'.join(map(str, unit))})OVERLAP_F_B"


def _cell(program: RankProgram, step: Instruction, action: str) -> Cell:
    stage = -1 if step.stage is None else step.stage
    return Cell(program.rank, 0, stage, action, -1 if step.mb is None else step.mb)


def _with_messages(program: RankProgram, carries: Mapping[int, str], fsdp: bool) -> Iterator[Cell]:
    """Yield the cells of one rank in the layout ``compute_comms``."""
    gathered = any(step.op == "ALL_GATHER" for step in program.ops)
    ahead = _unshards(program) if fsdp and not gathered else {}
    reduces = _reduce_places(program)
    for at, step in enumerate(program.ops):
        yield from (Cell(program.rank, 0, stage, "UNSHARD") for stage in ahead.get(at, ()))
        if step.op in _COMPUTE:
            yield from _compute(program, step)
        elif step.op in ("SEND", "RECV") and step.channel is not None:
            kind = "F" if carries[step.channel] == "activation" else "B"
            yield _cell(program, step, f"{step.op}_{kind}")
        elif step.op == "ALL_GATHER" and fsdp:
            yield _cell(program, step, "UNSHARD")
        for stage in reduces.get(at, ()):
            yield Cell(program.rank, 0, stage, "REDUCE_GRAD")
            if fsdp:
                yield Cell(program.rank, 0, stage, "RESHARD")


def _unshards(program: RankProgram) -> dict[int, list[int]]:
    """Return, by the index of the op that they stand before, the stages to gather: each one stage ahead of its use."""
    first: dict[int, int] = {}
    for at, step in enumerate(program.ops):
        if step.op in ("F", "FB") and step.stage is not None:
            first.setdefault(step.stage, at)
    found: dict[int, list[int]] = {}
    before = 0
    for stage, at in first.items():
        found.setdefault(before, []).append(stage)
        before = at
    return found


def _reduce_places(program: RankProgram) -> dict[int, list[int]]:
    """Return, by the index of the op that they follow, the stages whose gradients are complete.

    That is where the plan reduces them; without data parallelism the last W or B of the stage, behind the messages
    that leave right after it.
    """
    last: dict[int, int] = {}
    posted: dict[int, int] = {}
    for at, step in enumerate(program.ops):
        if step.stage is not None and step.op in ("W", "B"):
            last[step.stage] = at
        elif step.backward_stage is not None:
            last[step.backward_stage] = at
        elif step.stage is not None and step.op in _REDUCE:
            posted[step.stage] = at
    found: dict[int, list[int]] = {}
    for stage, at in (last | posted).items():
        while stage not in posted and program.ops[at + 1].op == "SEND":
            at += 1
        found.setdefault(at, []).append(stage)
    return found
