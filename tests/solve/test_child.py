"""Child processes: whatever one does, it comes back as what it is, and nothing of it stays."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ROOT
from hypothesis import given
from hypothesis import strategies as st
from stub_workers import Number

import cpipe
from cpipe.solve.child import Ended, parent, run_child, warning_of
from cpipe.solve.child.frames import EVENT, REPLY, Frame, FrameError, frame, read_frame
from cpipe.solve.limits import Stop

Kinds = st.sampled_from([EVENT, REPLY])


def run(name: str, value: int = 1, **options: object) -> Ended[Number]:
    """Run a stub worker."""
    return run_child(f"stub_workers:{name}", Number(value=value), Number, **options)  # type: ignore[arg-type]


def is_running(pid: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> bool:
    """Wait until a condition holds; return whether it does."""
    latest = time.monotonic() + seconds
    while not holds() and time.monotonic() < latest:
        time.sleep(0.02)
    return holds()


def test_reply_and_events(capfd: pytest.CaptureFixture[str]) -> None:
    """Events come in order, then the reply; what the child prints appears nowhere."""
    heard: list[Number] = []
    ended = run("echo", 41, event_type=Number, on_event=heard.append)
    assert ended == Ended("answered", Number(value=42), "")
    assert heard == [Number(value=41)]
    assert capfd.readouterr() == ("", "")
    assert warning_of(ended, "HiGHS") is None


def test_large_requests() -> None:
    """A request much larger than a pipe's buffer arrives whole, and so does the reply."""
    text = "x" * 3_000_000
    ended = run_child("stub_workers:echo", Number(value=1, text=text), Number)
    assert ended.reply == Number(value=2, text=text)


@pytest.mark.parametrize(
    ("name", "how", "detail", "code"),
    [
        ("be_killed", "killed", "killed by SIGKILL", "solver-died"),
        ("crash", "killed", "killed by SIGSEGV", "solver-died"),
        ("leave", "killed", "ended with exit code 7: licence expired", "solver-died"),
        ("fail", "failed", "ValueError: no licence for this", "solver-failed"),
        ("leak", "failed", "MemoryError:", "solver-failed"),
        ("no_such_worker", "failed", "has no attribute 'no_such_worker'", "solver-failed"),
        ("babble", "rubbish", "the answer cannot be read: b'Running H' begins no frame", "solver-failed"),
        ("break_off", "rubbish", "a frame ends after 41 of 100 bytes", "solver-failed"),
        ("answer_else", "rubbish", "Object missing required field `value`", "solver-failed"),
    ],
)
def test_bad_ends(name: str, how: str, detail: str, code: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A child that dies, fails or talks rubbish is told apart, in one line, and warned of under a stable code."""
    ended = run(name)
    assert (ended.how, ended.reply) == (how, None)
    assert detail in ended.detail
    assert "\n" not in ended.detail
    warning = warning_of(ended, "HiGHS")
    assert warning is not None
    assert (warning.code, warning.severity) == (code, "warning")
    assert warning.message.startswith(f"HiGHS: {ended.detail}; the best order")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["hang", "chatter"])
def test_watchdog(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that goes on past twice its limit is killed, silent or not."""
    monkeypatch.setattr(parent, "_GRACE_S", 0.0)
    ended = run(name, time_limit=0.1, event_type=Number, on_event=lambda event: None)
    assert (ended.how, ended.detail) == ("not_answering", "no answer within 0.2 s")
    warning = warning_of(ended, "HiGHS")
    assert warning is not None
    assert warning.code == "solver-not-answering"


def test_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a time limit a fixed ceiling, far beyond counted work, ends what hangs."""
    assert parent._limit_of(None) == parent.CEILING_S >= 3600
    assert parent._limit_of(10.0) == 20 + parent._GRACE_S
    monkeypatch.setattr(parent, "CEILING_S", 0.2)
    assert run("hang").how == "not_answering"


def test_stop_is_obeyed() -> None:
    """A child that is asked to stop can still answer."""
    stop = Stop()
    ended = run("obey", event_type=Number, on_event=lambda event: stop.request(), stop=stop)
    assert ended == Ended("answered", Number(value=1), "")


def test_stop_that_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that does not answer soon after it was asked to stop is killed; that is no fault to warn of."""
    monkeypatch.setattr(parent, "_STOP_GRACE_S", 0.1)
    stop = Stop()
    stop.request()
    ended = run("hang", stop=stop)
    assert ended.how == "stopped"
    assert warning_of(ended, "HiGHS") is None


def test_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be started the caller is told, not taken down."""
    for executable in ("/no/such/python", "", None):
        monkeypatch.setattr(sys, "executable", executable)
        ended = run("echo")
        assert ended.how == "not_started"
        warning = warning_of(ended, "HiGHS")
        assert warning is not None
        assert warning.code == "solver-failed"


def test_ctrl_c_kills_the_child() -> None:
    """When the caller is interrupted the child does not outlive the call."""
    pids: list[int] = []

    def interrupted(event: Number) -> None:
        pids.append(event.value)
        raise KeyboardInterrupt("by hand")

    with pytest.raises(KeyboardInterrupt, match="by hand"):
        run("obey", event_type=Number, on_event=interrupted)
    assert not is_running(pids[0])


def test_child_ends_with_its_caller() -> None:
    """A child whose caller was killed ends by itself."""
    program = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/tests']\n"
        "from stub_workers import Number\n"
        "from cpipe.solve.child import run_child\n"
        "run_child('stub_workers:obey', Number(value=1), Number, event_type=Number,\n"
        "          on_event=lambda event: print(event.value, flush=True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(ROOT)], stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        assert is_running(pid)
        caller.kill()
    assert wait_until(lambda: not is_running(pid))


def test_files_named_like_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the working directory nor the environment decides what a child imports."""
    for name in ("random", "msgspec", "cpipe", "json", "signal", "pulp"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "random.py"))
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "missing"), *sys.path])
    ended = run("where")
    assert ended.reply is not None, ended.detail
    ours, theirs = ended.reply.text.split("|")
    assert ended.reply.value == 0
    assert ours == cpipe.__file__
    assert not theirs.startswith(str(tmp_path))


def test_scripts_without_a_main_guard(tmp_path: Path) -> None:
    """A script that solves at its top level runs once: nothing imports it a second time."""
    script = tmp_path / "job.py"
    script.write_text(
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
        "print('once')\n"
        "from oracle.cases import case; from oracle.orders import serial_schedule\n"
        "from cpipe.ir import Bound; from cpipe.solve.milp import solve_milp\n"
        "problem = case(2, (0, 1))\n"
        "print(solve_milp(problem, serial_schedule(problem), lower_bound=Bound(value_ns=0)).dual_bound_ns)\n",
        encoding="utf-8",
    )
    environ = {"PATH": os.defpath, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=environ)
    assert (done.stdout, done.stderr) == ("once\n7\n", "")


@given(st.lists(st.tuples(Kinds, st.binary(max_size=40)), max_size=5))
def test_frames_come_back(frames: list[tuple[bytes, bytes]]) -> None:
    """Frames that were written one after the other are read as they were, then comes the end."""
    stream = io.BytesIO(b"".join(frame(kind, payload) for kind, payload in frames))
    assert [read_frame(stream) for _ in frames] == [Frame(kind, payload) for kind, payload in frames]
    assert read_frame(stream) is None


@given(Kinds, st.binary(max_size=40), st.data())
def test_frames_that_break_off(kind: bytes, payload: bytes, data: st.DataObject) -> None:
    """Part of a frame is never taken for a whole one, nor for the end."""
    whole = frame(kind, payload)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(FrameError, match=r"that are no frame|a frame ends after"):
        read_frame(io.BytesIO(whole[:cut]))


@given(st.binary(min_size=9, max_size=60).filter(lambda data: not data.startswith(b"cpw1")))
def test_noise_is_no_frame(noise: bytes) -> None:
    """Bytes without the mark are refused, whatever length they seem to name."""
    with pytest.raises(FrameError, match="begins no frame"):
        read_frame(io.BytesIO(noise))


def test_impossible_lengths() -> None:
    """A length beyond any request is refused before anything is read."""
    with pytest.raises(FrameError, match="begins no frame"):
        read_frame(io.BytesIO(b"cpw1R\xff\xff\xff\xff"))
