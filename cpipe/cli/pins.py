"""Plans that stand beside the profiles they were made for: found, checked, made anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from cpipe.cli.blame import faults_of
from cpipe.cli.files import STANDARD_STREAM, OutputFile
from cpipe.cli.validate import closed_bound, problem_of
from cpipe.compiler import Compiled, SolveOptions, compile_profile, problem_for_plan, simulate_plan
from cpipe.errors import CpipeError, Diagnostic, InputError, UsageError
from cpipe.ir import MadeBy, Plan, Problem
from cpipe.plan import encode_plan, load_plan, problem_digest, validate
from cpipe.profile import Profile, load_profile
from cpipe.report.check import PlanCheck, Verdict
from cpipe.sim import DeadlockError
from cpipe.solve.methods import METHODS

__all__ = ["PLAN_NAME", "PROFILE_NAME", "Pin", "PinCheck", "find_pins"]

PLAN_NAME = "plan.json"
PROFILE_NAME = "profile.json"


class Pin(NamedTuple):
    """A plan and its profile, by name; `fault` says why the place could not be searched for more."""

    plan: str
    profile: str
    fault: Diagnostic | None = None


def find_pins(paths: Sequence[str], profile: str | None = None) -> tuple[Pin, ...]:
    """Return the plans that `paths` name, each once, in the order of the paths; below a folder in that of names.

    Parameters
    ----------
    paths
        Files are plans. Of a folder it is every ``plan.json`` in it and below; what is hidden (``.git``) is left out,
        and links to folders are not followed.
    profile
        Of the plans that are named; None is the ``profile.json`` beside each.

    Raises
    ------
    UsageError
        When a folder holds no plan, or a call makes no sense.
    """
    folders = [path for path in paths if os.path.isdir(path)]
    if profile is not None and folders:
        message = f"--profile is for plans that are named, and {folders[0]} is a folder"
        raise UsageError(message, code="profile-of-folder")
    if STANDARD_STREAM in (*paths, profile):
        raise UsageError("plans and profiles are checked where they stand, not on standard input", code="not-a-file")
    found: dict[tuple[str, str], Pin] = {}
    empty: list[str] = []
    for path in paths:
        pins = list(_below(path)) if path in folders else [Pin(path, profile or _beside(path))]
        if not pins:
            empty.append(path)
        for pin in pins:
            found.setdefault((os.path.abspath(pin.plan), os.path.abspath(pin.profile)), pin)
    if empty:
        message = f"no {PLAN_NAME} was found here or below"
        faults = [Diagnostic(code="no-plans", message=message, file=path) for path in empty]
        raise UsageError(faults, hint="name the folder that holds them, or a plan")
    return tuple(found.values())


def _below(folder: str) -> Iterator[Pin]:
    refused: list[OSError] = []
    for root, folders, files in os.walk(folder, onerror=refused.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if PLAN_NAME in files:
            plan = os.path.join(root, PLAN_NAME)
            yield Pin(plan, _beside(plan))
    for error in refused:
        name = os.fsdecode(error.filename)
        message = f"this folder cannot be searched: {error.strerror}"
        yield Pin(name, _beside(name), Diagnostic(code="unreadable", message=message, file=name))


def _beside(plan: str) -> str:
    return os.path.join(os.path.dirname(plan), PROFILE_NAME)


class PinCheck:
    """The check of one plan; `result` says what is known so far.

    Parameters
    ----------
    pin
        The plan and its profile.

    Attributes
    ----------
    result
        The verdict, and all that led to it.
    """

    def __init__(self, pin: Pin) -> None:
        self._pin = pin
        self._plan: Plan | None = None
        self._profile: Profile | None = None
        self._fresh: Compiled | None = None
        self.result = self._examined()

    def _examined(self) -> PlanCheck:
        pin = self._pin
        unread = PlanCheck(file=pin.plan, profile=pin.profile, verdict="unreadable")
        if pin.fault is not None:
            return replace(unread, diagnostics=(pin.fault,))
        try:
            self._plan = plan = load_plan(pin.plan)
            if not os.path.lexists(pin.profile):
                fault = Diagnostic(code="missing-profile", message="the plan has no profile here", file=pin.profile)
                return replace(_claimed(unread, plan), verdict="missing-profile", diagnostics=(fault,))
            self._profile = profile = load_profile(pin.profile)
        except InputError as error:
            known = unread if self._plan is None else _claimed(unread, self._plan)
            return replace(known, diagnostics=error.diagnostics)
        problem, unlinked = problem_of(plan, profile, pin.profile)
        verdict, found = _judged(plan, problem, (*_moved(plan, profile, pin.plan), *unlinked), pin.plan)
        replayed = None if verdict == "invalid" else _replayed_ns(plan, profile)
        return replace(_claimed(unread, plan), verdict=verdict, replayed_ns=replayed, diagnostics=found)

    def resolve(self, tolerance: float, progress: Callable[[str], None]) -> None:
        """Solve the profile anew, as the plan says that it was made, and compare.

        Parameters
        ----------
        tolerance
            Share of the new plan by which the old one may be longer.
        progress
            Told how the search goes.
        """
        if self.result.verdict != "ok" or self._solved(progress) is None:
            return
        claimed, fresh = self.result.claimed_ns, self.result.fresh_ns
        if claimed is None or fresh is None or claimed - fresh <= tolerance * fresh:
            return
        share = f" by {100 * (claimed - fresh) / fresh:.2f} %" if fresh else ""
        message = f"a search finds a better plan today{share}: {fresh} ns, this one takes {claimed} ns"
        fault = Diagnostic(code="worse", message=message, file=self._pin.plan, path="$.claims")
        self.result = replace(self.result, verdict="worse", diagnostics=(*self.result.diagnostics, fault))

    def update(self, progress: Callable[[str], None]) -> None:
        """Make the plan anew where it is stale, invalid or worse, and write it in place of the old one.

        What cannot be made or written leaves the old plan as it is, with a diagnostic that says why.
        """
        if self.result.verdict not in ("stale", "invalid", "worse"):
            return
        try:
            target = OutputFile(self._pin.plan, [self._pin.profile], option="--update")
            fresh = self._solved(progress)
            if fresh is None:
                return
            target.write(encode_plan(fresh.plan))
        except UsageError as error:
            self._add(*error.diagnostics)
            return
        self.result = replace(self.result, verdict="updated", was=self.result.verdict)

    def _solved(self, progress: Callable[[str], None]) -> Compiled | None:
        """Return the plan that a search finds today; None, with a warning, where it finds none."""
        if self._fresh is not None or self._plan is None or self._profile is None:
            return self._fresh
        try:
            options = options_of(self._plan.made_by)
            with faults_of(self._pin.profile):
                self._fresh = compile_profile(self._profile, options, progress)
        except CpipeError as error:
            reason = error.diagnostics[0].message
            message = f"it cannot be made anew: {reason}"
            self._add(Diagnostic(code="not-made-anew", message=message, severity="warning", file=self._pin.plan))
            return None
        reached = self._fresh.result.objective_ns
        self.result = replace(self.result, fresh_ns=reached)
        return self._fresh

    def _add(self, *found: Diagnostic) -> None:
        self.result = replace(self.result, diagnostics=(*self.result.diagnostics, *found))


def options_of(made_by: MadeBy) -> SolveOptions:
    """Return the options that a plan was made with.

    Raises
    ------
    UsageError
        When no search made it (it was imported, or timed anew), or with options that this version does not know.
    """
    if made_by.method not in METHODS:
        raise UsageError(f"{made_by.method!r} is no search", code="no-search")
    chosen = {name: value for name, value in made_by.limits.items() if name != "interrupted"}
    try:
        return msgspec.convert({**chosen, "method": made_by.method, "seed": made_by.seed}, SolveOptions)
    except msgspec.ValidationError as error:
        raise UsageError(f"its limits are not known here: {error}", code="unknown-limits") from error


def _claimed(check: PlanCheck, plan: Plan) -> PlanCheck:
    """Return the check with what the plan claims."""
    claims = plan.claims
    is_span = claims.objective == "span" and claims.span_ns is not None
    reached = claims.span_ns if is_span else claims.makespan_ns
    return replace(check, objective=claims.objective, claimed_ns=reached, bound_ns=claims.lower_bound_ns)


def _judged(
    plan: Plan, problem: Problem, others: Sequence[Diagnostic], file: str
) -> tuple[Verdict, tuple[Diagnostic, ...]]:
    """Return the verdict of a plan and its profile, with all faults; `others` are what the validator cannot know.

    Faults that it has by itself weigh more than a profile that is not the one that it was made for.
    """
    found = (*validate(plan, problem, file=file, closed_bound_ns=closed_bound(plan, problem)), *others)
    if not any(fault.severity == "error" for fault in found):
        return "ok", found
    if plan.problem.digest == problem_digest(problem) and not others:
        return "invalid", found
    alone = validate(plan, file=file)
    if any(fault.severity == "error" for fault in alone):
        return "invalid", found
    return "stale", found


def _moved(plan: Plan, profile: Profile, file: str) -> Iterator[Diagnostic]:
    """Yield a fault for each stage that stands elsewhere in the profile, where the plan was made for that placement.

    The validator takes a plan's own placement, which may be a pattern that the profile does not have.
    """
    if plan.made_by.method not in METHODS or "placement" in plan.made_by.limits or plan.problem.flows > 1:
        return
    devices = [device.id for device in profile.devices]
    if len(profile.stages) != plan.problem.stages or len(devices) != plan.problem.devices:
        return
    for index, (stage, device) in enumerate(zip(profile.stages, plan.problem.placement, strict=False)):
        if 0 <= device < len(devices) and stage.device != devices[device]:
            message = (
                f"the profile places stage {index} on device {stage.device!r} now, the plan on {devices[device]!r}"
            )
            yield Diagnostic(code="other-placement", message=message, file=file, path="$.problem.placement")


def _replayed_ns(plan: Plan, profile: Profile) -> int | None:
    """Return the makespan of a plan without faults of its own on a profile [ns]; None where it does not fit."""
    try:
        return simulate_plan(plan, problem_for_plan(plan, profile)).makespan_ns
    except (InputError, DeadlockError):
        return None
