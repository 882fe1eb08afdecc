"""Plan -> schedule: what a plan decides, free of the times it states."""

from __future__ import annotations

from cpipe.ir import InvariantError, OpKind, Plan, RankProgram, Schedule, encode_op

__all__ = ["late_sends", "lift"]

_COMPUTE = {kind.name: kind for kind in OpKind}


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
    orders = tuple(_lift_rank(program, plan.problem.microbatches, carries, gates) for program in programs)
    return Schedule(orders=orders), gates


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
        last: tuple[OpKind, int | None, int | None] | None = None
        for step in program.ops:
            if step.op in _COMPUTE:
                last = _COMPUTE[step.op], step.stage, step.mb
            elif step.op == "SEND" and last is not None and step.stage is not None and step.mb is not None:
                forward = carries.get(step.channel) == "activation"
                kind, stage, mb = last
                made = (kind is OpKind.F) if forward else kind in (OpKind.D, OpKind.B)
                if made and (stage, mb) == (step.stage, step.mb):
                    continue
                slot = encode_op(
                    OpKind.F if forward else OpKind.D, step.stage + (1 if forward else -1), step.mb, microbatches
                )
                late[slot] = encode_op(kind, stage or 0, mb or 0, microbatches)
    return late


def _lift_rank(
    program: RankProgram, microbatches: int, carries: dict[int | None, str], gates: dict[int, int]
) -> tuple[int, ...]:
    order: list[int] = []
    for index, step in enumerate(program.ops):
        kind = _COMPUTE.get(step.op)
        if kind is None and step.op != "RECV":
            continue
        if step.stage is None or step.mb is None:
            raise InvariantError(f"rank {program.rank} ops[{index}]: {step.op} without stage or microbatch")
        if kind is not None:
            order.append(encode_op(kind, step.stage, step.mb, microbatches))
        elif order:
            slot = OpKind.F if carries.get(step.channel) == "activation" else OpKind.D
            gates[encode_op(slot, step.stage, step.mb, microbatches)] = order[-1]
    return tuple(order)
