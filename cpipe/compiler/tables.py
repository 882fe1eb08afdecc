"""A plan of somebody else's schedule, read from a table."""

from __future__ import annotations

import msgspec

import cpipe
from cpipe.compiler.claims import claiming, with_transports
from cpipe.compiler.replay import simulate_plan
from cpipe.errors import Diagnostic, PlanError
from cpipe.ir import Bound, InvariantError, MadeBy, Plan, Problem, Schedule
from cpipe.plan import lift, lower, validate
from cpipe.plan.exchange import TorchTable, plan_of_table, table_warnings, with_times
from cpipe.plan.lower import certificate
from cpipe.profile import Profile, normalize
from cpipe.sim import DeadlockError, memory_peaks, simulate
from cpipe.solve.bounds import lower_bound

__all__ = ["import_table"]


def import_table(
    table: TorchTable, profile: Profile, *, file: str | None = None, transport: str | None = None
) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """Make a plan of somebody else's schedule, as it is, and say what is wrong with it.

    Parameters
    ----------
    table
        Torch's table. Its own placement counts, not the profile's. With messages they stay where they are; without,
        they are placed as for a schedule of our own.
    profile
        What the ops cost.
    file
        Name of the table for the messages.
    transport
        Queue model that it must be right for; None is ``gloo`` for a table with messages, as torch puts them all on
        one group, else ``channels``.

    Returns
    -------
    tuple
        The plan; its faults, and warnings of what only torch would see. A plan with a fault of structure has no times.

    Raises
    ------
    PlanError
        When no plan can hold the table, or it is for another number of ranks or microbatches.
    """
    rows = [*table.rows]
    while len(rows) > len(profile.devices) and not rows[-1]:
        rows.pop()
    table = table._replace(rows=tuple(rows))
    _check_size(table, profile, file)
    own = normalize(profile, prove_memory=False)
    problem = normalize(profile, placement=table.placement(own.placement), prove_memory=False)
    made_by = MadeBy(cpipe=cpipe.__version__, method="torch-csv", seed=0, limits={})
    plan = plan_of_table(table, problem, made_by, file=file)
    faults = validate(plan)
    if not faults:
        plan = _timed(plan, problem, keep_messages=table.has_messages)
        faults = validate(plan, problem, transport=transport or ("gloo" if table.has_messages else "channels"))
    return plan, (*table_warnings(table, file=file), *faults)


def _timed(draft: Plan, problem: Problem, *, keep_messages: bool) -> Plan:
    """Return the plan with times and claims, as far as the problem allows the schedule.

    Receives stay where they are to `keep_messages`, else they are posted as for a schedule of our own.
    """
    schedule, _ = lift(draft)
    try:
        schedule.verify(problem)
    except InvariantError:
        return draft
    peaks = memory_peaks(problem, schedule.orders, schedule.pairs, schedule.offloads)
    buffers = [0] * problem.num_devices
    for channel in draft.channels:
        buffers[channel.target] += channel.window * channel.message_bytes
    plan = claiming(draft, peak_bytes=tuple(map(sum, zip(peaks, buffers, strict=True))))
    try:
        timeline = simulate_plan(draft, problem) if keep_messages else simulate(problem, schedule)
    except (DeadlockError, PlanError):
        return plan
    bound = lower_bound(problem)
    if bound.value_ns > timeline.makespan_ns:  # a schedule that breaks the memory limit may beat it
        bound = Bound(value_ns=0)
    if keep_messages:
        proof = certificate(timeline.makespan_ns, bound)
        plan = claiming(plan, lower_bound_ns=bound.value_ns, proved_by=bound.proved_by, **proof)
        return with_transports(with_times(plan, timeline))
    plan = lower(problem, schedule, timeline, bound=bound, resident_peaks=peaks, made_by=draft.made_by)
    return with_transports(plan if _fits(plan, problem) else _narrowed(plan, problem, schedule))


def _fits(plan: Plan, problem: Problem) -> bool:
    capacities = [device.capacity_bytes for device in problem.devices]
    return all(room is None or peak <= room for peak, room in zip(plan.claims.peak_bytes, capacities, strict=True))


def _narrowed(plan: Plan, problem: Problem, schedule: Schedule) -> Plan:
    """Post fewer receives at once, as for a schedule of our own, until they fit; the plan as it is if none do.

    A narrower window never shortens a schedule, so the widest that fits, of the powers of two, is taken.
    """
    widest = max((channel.window for channel in plan.channels), default=0)
    claims = plan.claims
    bound = Bound(value_ns=claims.lower_bound_ns, proved_by=claims.proved_by, reason=claims.reason)
    for power in reversed(range(max(0, widest - 1).bit_length())):
        windowed = msgspec.structs.replace(problem, receive_window=1 << power)
        try:
            timeline = simulate(windowed, schedule)
        except DeadlockError:
            break
        peaks = memory_peaks(windowed, schedule.orders, schedule.pairs)
        narrow = lower(windowed, schedule, timeline, bound=bound, resident_peaks=peaks, made_by=plan.made_by)
        if _fits(narrow, problem):
            return narrow
    return plan


def _check_size(table: TorchTable, profile: Profile, file: str | None) -> None:
    """Refuse a table that is whole, but for another job."""
    counts = [(f"{len(table.rows)} ranks", f"{len(profile.devices)} devices", len(table.rows) != len(profile.devices))]
    found = {(cell.stage, cell.mb) for cell in table.cells() if cell.action == "F"}
    stages = {stage for stage, _ in found}
    counts.append((f"{len(stages)} stages", f"{len(profile.stages)}", len(stages) > len(profile.stages)))
    most = 1 + max((mb for _, mb in found), default=-1)
    whole = len(found) == most * len(stages)
    counts.append((f"{most} microbatches", f"{profile.microbatches}", whole and most != profile.microbatches))
    faults = [
        Diagnostic(code="different-size", message=f"the table has {ours}, the profile {theirs}", file=file)
        for ours, theirs, differ in counts
        if differ
    ]
    if faults:
        raise PlanError(faults)
