"""Plan -> schedule: what a plan decides, free of the times it states."""

from __future__ import annotations

from cpipe.ir import Instruction, InvariantError, Op, OpKind, Plan, RankProgram, Schedule, encode_op
from cpipe.plan.copies import lifted_offloads

__all__ = ["late_sends", "lift", "posting_gates"]

_COMPUTE = {kind.name: (kind,) for kind in OpKind} | {"FB": (OpKind.F, OpKind.B)}


def lift(plan: Plan) -> tuple[Schedule, dict[int, int]]:
    """Return the orders of `plan` and where its receives are posted, to replay it on any network.

    Parameters
    ----------
    plan
        A valid plan (see `cpipe.plan.validate`).

    Returns
    -------
    tuple
        The schedule, and the receive gates of `cpipe.sim.simulate`: slot that a message feeds (the id of the F, or of
        D) -> the last op that the receiving rank runs before it posts the receive. A receive that stands before the
        first op has no gate. A receive that stands between a WAIT and its op is taken as posted before the WAIT.

    Raises
    ------
    InvariantError
        When ranks are not 0..P-1 or an op lacks its stage or microbatch.
    """
    programs = sorted(plan.ranks, key=lambda program: program.rank)
    if [program.rank for program in programs] != list(range(plan.problem.devices)):
        raise InvariantError(f"ranks are not 0..{plan.problem.devices - 1}")
    carries: dict[int | None, str] = {channel.id: channel.carries for channel in plan.channels}
    gates: dict[int, int] = {}
    pairs: list[tuple[int, int]] = []
    orders = tuple(_lift_rank(program, plan.problem.microbatches, carries, gates, pairs) for program in programs)
    offloads = sorted(
        (entry for program in programs for entry in lifted_offloads(program)),
        key=lambda entry: (entry.stage, entry.microbatch),
    )
    return Schedule(orders=orders, pairs=tuple(pairs), offloads=tuple(offloads)), gates


def late_sends(plan: Plan) -> dict[int, int]:
    """Return the messages of a valid plan that are not sent right after the op that makes them.

    Returns
    -------
    dict
        More gates of `cpipe.sim.simulate`: slot that the message feeds -> the last op that the sender runs before it
        sends.
    """
    microbatches = plan.problem.microbatches
    carries: dict[int | None, str] = {channel.id: channel.carries for channel in plan.channels}
    late: dict[int, int] = {}
    for program in plan.ranks:
        last: list[Op] = []
        for step in program.ops:
            if step.op in _COMPUTE:
                last = _ops_of(step)
            elif step.op == "SEND" and last and step.stage is not None and step.mb is not None:
                forward = carries.get(step.channel) == "activation"
                makers = (OpKind.F,) if forward else (OpKind.D, OpKind.B)
                if any(op.kind in makers and op[1:] == (step.stage, step.mb) for op in last):
                    continue
                slot = encode_op(
                    OpKind.F if forward else OpKind.D, step.stage + (1 if forward else -1), step.mb, microbatches
                )
                late[slot] = encode_op(*last[0], microbatches)
    return late


def posting_gates(plan: Plan) -> dict[int, tuple[int, ...]]:
    """Return the gates of `cpipe.sim.simulate` that replay a valid plan as it posts its messages.

    Returns
    -------
    dict
        Those of `lift` and of `late_sends`: slot that a message feeds -> the ops that must end before it may leave.
    """
    receives, sends = lift(plan)[1], late_sends(plan)
    return {
        slot: tuple(gate[slot] for gate in (receives, sends) if slot in gate) for slot in sorted({*receives, *sends})
    }


def _ops_of(step: Instruction) -> list[Op]:
    """Return the op of a compute instruction, or the two of a fused pair; what it does not state is 0."""
    places = ((step.stage, step.mb), (step.backward_stage, step.backward_mb))
    return [Op(kind, stage or 0, mb or 0) for kind, (stage, mb) in zip(_COMPUTE[step.op], places, strict=False)]


def _lift_rank(
    program: RankProgram,
    microbatches: int,
    carries: dict[int | None, str],
    gates: dict[int, int],
    pairs: list[tuple[int, int]],
) -> tuple[int, ...]:
    order: list[int] = []
    for index, step in enumerate(program.ops):
        if step.op not in _COMPUTE and step.op != "RECV":
            continue
        if step.stage is None or step.mb is None:
            raise InvariantError(f"rank {program.rank} ops[{index}]: {step.op} without stage or microbatch")
        if step.op == "FB" and None in (step.backward_stage, step.backward_mb):
            raise InvariantError(
                f"rank {program.rank} ops[{index}]: FB without the stage or microbatch of its backward"
            )
        if step.op in _COMPUTE:
            ops = [encode_op(*op, microbatches) for op in _ops_of(step)]
            order += ops
            if len(ops) == 2:
                pairs.append((ops[0], ops[1]))
        elif order:
            slot = OpKind.F if carries.get(step.channel) == "activation" else OpKind.D
            gates[encode_op(slot, step.stage, step.mb, microbatches)] = order[-1]
    return tuple(order)
