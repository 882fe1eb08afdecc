"""Watches a run from a thread of its own: signs of life, limits, and faults that other ranks report.

No wait of the executor blocks for ever: the main thread waits on a condition that this thread wakes when the run has
failed anywhere, and everything that may take long is announced as an `Activity` with its limit.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import msgspec

from cpipe.errors import Diagnostic
from cpipe.ir.base import Frozen
from cpipe.runtime.bulletin import Bulletin
from cpipe.runtime.faults import RuntimeFault
from cpipe.runtime.watchdog import Watchdog

__all__ = ["Activity", "Monitor"]

_TICK_S = 0.1
_POLL_S = 0.01
_JOIN_S = 5.0
_GRACE_S = 1.0
_STORE_RETRIES = 3


class Activity(Frozen, frozen=True, kw_only=True):
    """What a process does.

    Attributes
    ----------
    state
        ``compute``; ``wait``: for others; ``outside``: between two steps; ``closed``.
    what
        For people: ``F of stage 1 microbatch 2``, or what it waits for.
    awaits
        Processes that it waits for.
    expected_s, limit_s
        How long the plan says it takes, and how long it may [s].
    stage, mb
        Of the op, for the fault.
    """

    state: str
    what: str
    awaits: tuple[int, ...] = ()
    expected_s: float = 0.0
    limit_s: float = 0.0
    stage: int | None = None
    mb: int | None = None


class Beat(Frozen, frozen=True, kw_only=True):
    """A sign of life: it counts up, and says what the process does and for how long already [s].

    `step` is the number of the step it is in, or that comes next.
    """

    count: int
    step: int
    age_s: float
    activity: Activity


class _Report(Frozen, frozen=True, kw_only=True):
    """A fault as it travels."""

    diagnostics: tuple[Diagnostic, ...]
    rank: int | None
    stage: int | None
    mb: int | None
    hint: str | None


class Monitor:
    """Signs of life and limits of one process.

    Parameters
    ----------
    bulletin
        Where processes meet.
    watchdog
        The limits.
    names, ranks
        What to call each process (``rank 2``, or ``replica 1 rank 2``), and its pipeline rank.
    """

    def __init__(self, bulletin: Bulletin, watchdog: Watchdog, names: list[str], ranks: list[int]) -> None:
        self._bulletin = bulletin
        self._watchdog = watchdog
        self._names = names
        self._ranks = ranks
        self._me = bulletin.me
        self.condition = threading.Condition()
        self.step = 0
        self._fault: RuntimeFault | None = None
        self._activity = Activity(state="outside", what="before the first step")
        self._since = time.monotonic()
        self._count = 0
        self._ticked = self._since
        self._seen: dict[int, tuple[int, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpipe-monitor", daemon=True)

    @property
    def activity(self) -> Activity:
        """What the process does."""
        return self._activity

    @property
    def failed(self) -> bool:
        """Whether the run has failed."""
        return self._fault is not None

    def start(self) -> None:
        """Start watching."""
        self._beat()
        self._thread.start()

    def close(self) -> None:
        """Stop watching, once no other process is in a step any more: the store may live in this one.

        The others learn that this process has left in good order. They get no longer than an op may take.
        """
        self.enter(Activity(state="closed", what="closed its executor"))
        deadline = time.monotonic() + max(self._watchdog.floor_s, self._watchdog.first_step_s)
        with suppress(Exception):  # whoever keeps the store has left already
            self._beat()
            while self._fault is None and self._others_run() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        self._stop.set()
        self._thread.join(_JOIN_S)

    def enter(self, activity: Activity) -> None:
        """Announce what the process does from now on."""
        self._activity = activity
        self._since = time.monotonic()

    def check(self) -> None:
        """Raise the fault of the run, if there is one.

        Raises
        ------
        RuntimeFault
            The same on every rank.
        """
        if self._fault is not None:
            raise self._fault

    def wait(self, ready: Callable[[], bool], poll_s: float = 1.0) -> None:
        """Wait until `ready`, or until the run has failed; `condition` is notified, or asked every `poll_s` [s]."""
        with self.condition:
            while not ready():
                self.check()
                self._check_thread()
                self.condition.wait(poll_s)

    def sleep_until(self, moment_s: float) -> None:
        """Wait until a moment on CLOCK_MONOTONIC [s], or until the run has failed."""
        while (left := moment_s - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, _TICK_S))

    def _check_thread(self) -> None:
        """Make sure that somebody watches: a store that does not answer would hold up the watching itself."""
        silent = time.monotonic() - self._ticked
        if self._thread.is_alive() and silent > self._watchdog.silence_s + self._watchdog.floor_s:
            self._adopt(
                RuntimeFault(f"the store that joins the ranks gave no answer for {silent:.1f} s", code="store-lost")
            )

    def fail(self, fault: RuntimeFault, *, derived: bool = False) -> RuntimeFault:
        """End the run on all ranks; return the fault to raise: the first that anybody reported.

        `derived`: it may well be the consequence of another rank's fault, whose report then comes first.
        """
        deadline = time.monotonic() + (_GRACE_S if derived else 0.0)
        while self._fault is None:
            try:
                note = self._bulletin.fault()
                if note is None and time.monotonic() >= deadline:
                    note = self._bulletin.post_fault(_encode(fault))
                    if note == _encode(fault):
                        self._adopt(fault)
                        break
            except Exception:  # the store is gone as well
                self._adopt(fault)
                break
            if note is not None:
                self._adopt(_decode(note))
            else:
                time.sleep(_TICK_S)
        assert self._fault is not None  # noqa: S101 (the loop ends no other way)
        return self._fault

    def raise_fault(self, fault: RuntimeFault, *, derived: bool = False) -> NoReturn:
        """Like `fail`, and raise."""
        raise self.fail(fault, derived=derived)

    def _adopt(self, fault: RuntimeFault) -> None:
        with self.condition:
            self._fault = self._fault or fault
            self.condition.notify_all()

    def _run(self) -> None:
        """Look around until stopped or failed."""
        failures, next_beat = 0, 0.0
        while self._fault is None and not self._stop.wait(_TICK_S):
            self._ticked = time.monotonic()
            try:
                note = self._bulletin.fault()
                if note is not None:
                    self._adopt(_decode(note))
                    return
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + self._watchdog.heartbeat_s
                    self._beat()
                    self._listen()
                self._check_limit()
                failures = 0
            except RuntimeFault as error:  # the store; it may have been a moment only
                failures += 1
                if failures >= _STORE_RETRIES and not self._stop.is_set():
                    self._adopt(error)

    def _beat(self) -> None:
        self._count += 1
        age = time.monotonic() - self._since
        beat = Beat(count=self._count, step=self.step, age_s=age, activity=self._activity)
        self._bulletin.beat(msgspec.json.encode(beat).decode())

    def _others_run(self) -> bool:
        """Return whether another process is still in a step that this one has ended."""
        return any(
            beat.activity.state != "closed" and (beat.step < self.step or beat.activity.state != "outside")
            for process, beat in enumerate(self._beats())
            if beat is not None and process != self._me
        )

    def _beats(self) -> list[Beat | None]:
        notes = self._bulletin.beats()
        return [None if note is None else msgspec.json.decode(note, type=Beat) for note in notes]

    def _listen(self) -> None:
        """End the run when a process that is waited for gives no more signs of life."""
        if self._activity.state != "wait":
            return
        now = time.monotonic()
        for process, beat in enumerate(self._beats()):
            count = beat.count if beat is not None else 0
            if process == self._me or (beat is not None and beat.activity.state == "closed"):
                continue
            known, since = self._seen.get(process, (-1, now))
            if count != known:
                self._seen[process] = (count, now)
            elif now - since > self._watchdog.silence_s:
                last = f"; last seen in step {beat.step}: {beat.activity.what}" if beat is not None else ""
                message = f"{self._names[process]} is gone: no sign of life for {now - since:.1f} s{last}"
                self.fail(RuntimeFault(message, code="silent", rank=self._ranks[process]))

    def _check_limit(self) -> None:
        """End the run when what this process does, or waits for, is late."""
        activity, age = self._activity, time.monotonic() - self._since
        if activity.state not in ("compute", "wait") or age <= activity.limit_s:
            return
        beats = self._beats()
        beats[self._me] = Beat(count=0, step=self.step, age_s=age, activity=activity)
        late = self._culprit(beats)
        beat = beats[late]
        if beat is None:
            return  # never seen: `_listen` will tell
        state, limit = beat.activity.state, beat.activity.limit_s
        if late != self._me and state == "compute" and beat.age_s <= limit:
            return  # it has not used up its own time: there is progress
        if state == "outside" and beat.age_s <= self._watchdog.between_steps_s:
            return
        if (activity, self._fault) == (self._activity, None):  # it is still the same that is late
            message = f"{self._story(late, beat)}; {self._waiting(beats, late)}".removesuffix("; ")
            told = beat.activity
            self.fail(RuntimeFault(message, code="late", rank=self._ranks[late], stage=told.stage, microbatch=told.mb))

    def _culprit(self, beats: list[Beat | None]) -> int:
        """Follow who waits for whom to the process that waits for nobody, or back to one seen before."""
        process, seen = self._me, {self._me}
        while (beat := beats[process]) is not None and beat.activity.state == "wait" and beat.activity.awaits:
            process = min(beat.activity.awaits, key=lambda other: _is_waiting(beats[other]))
            if process in seen:
                break
            seen.add(process)
        return process

    def _story(self, process: int, beat: Beat) -> str:
        name, activity = self._names[process], beat.activity
        if activity.state == "outside":
            return f"{name} is late: it has not begun step {beat.step} for {beat.age_s:.1f} s ({activity.what})"
        if activity.state == "closed":
            return f"{name} has closed its executor while others wait for it"
        verb = "waits for" if activity.state == "wait" else "is in"
        expected = f"the plan expects {activity.expected_s:.3g} s, the limit is {activity.limit_s:.3g} s"
        return f"{name} is late: step {beat.step}, it {verb} {activity.what} for {beat.age_s:.1f} s; {expected}"

    def _waiting(self, beats: list[Beat | None], late: int) -> str:
        """Return what everybody else waits for."""
        return "; ".join(
            f"{self._names[process]} waits for {beat.activity.what}"
            for process, beat in enumerate(beats)
            if process != late and beat is not None and beat.activity.state == "wait"
        )


def _is_waiting(beat: Beat | None) -> bool:
    return beat is not None and beat.activity.state == "wait"


def _encode(fault: RuntimeFault) -> str:
    report = _Report(
        diagnostics=fault.diagnostics, rank=fault.rank, stage=fault.stage, mb=fault.microbatch, hint=fault.hint
    )
    return json.dumps(msgspec.to_builtins(report))


def _decode(note: str) -> RuntimeFault:
    report = msgspec.json.decode(note, type=_Report)
    return RuntimeFault(
        report.diagnostics, rank=report.rank, stage=report.stage, microbatch=report.mb, hint=report.hint
    )
