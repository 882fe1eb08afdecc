"""Tests of cpipe.cli.files: results are written atomically, with ordinary permissions, never over an input."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpipe.cli.files import OutputFile, is_standard_output, read_once
from cpipe.errors import UsageError


@pytest.fixture
def umask() -> Iterator[int]:
    """Set the umask to 027 for a test."""
    old = os.umask(0o027)
    yield 0o027
    os.umask(old)


def mode(path: Path) -> int:
    """Return the permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def test_new_file_has_ordinary_permissions(tmp_path: Path, umask: int) -> None:
    """A new file is readable as the umask says, not private as a temporary file."""
    target = tmp_path / "plan.json"
    OutputFile(str(target), []).write(b"data")
    assert target.read_bytes() == b"data"
    assert mode(target) == 0o666 & ~umask
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_old_file_keeps_its_permissions(tmp_path: Path) -> None:
    """Replacing a file keeps its permissions, as a shell redirection would."""
    target = tmp_path / "plan.json"
    target.write_bytes(b"old")
    target.chmod(0o604)
    OutputFile(str(target), []).write(b"new")
    assert (target.read_bytes(), mode(target)) == (b"new", 0o604)


def test_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    """Through a symbolic link its target is replaced, also when that does not exist yet."""
    target, link = tmp_path / "plan.json", tmp_path / "latest.json"
    link.symlink_to("plan.json")
    for data in (b"first", b"second"):
        OutputFile(str(link), []).write(data)
        assert link.is_symlink()
        assert target.read_bytes() == data


def test_failed_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last step fails the old file is whole and no temporary file is left."""
    target = tmp_path / "plan.json"
    target.write_bytes(b"old")
    output = OutputFile(str(target), [])

    def refuse(source: object, destination: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(UsageError, match=r"cannot be written: no space left on device \[output-not-writable\]"):
        output.write(b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_device_is_written_in_place(tmp_path: Path) -> None:
    """What is no regular file (a pipe, a device) is written, not replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    OutputFile(str(pipe), []).write(b"data")
    reader.join()
    assert received == [b"data"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    OutputFile("/dev/null", []).write(b"data")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_open_descriptor_is_written_in_place(name: str, tmp_path: Path) -> None:
    """What a shell opened for us is written through its descriptor: a pipe, or a file at the place where it stands."""
    reader, writer = os.pipe()
    OutputFile(name.format(writer), []).write(b"data")
    os.close(writer)
    assert os.read(reader, 10) == b"data"
    os.close(reader)
    with (tmp_path / "log").open("wb") as log:
        log.write(b"before ")
        log.flush()
        OutputFile(name.format(log.fileno()), []).write(b"after")
        log.write(b" end")
    assert (tmp_path / "log").read_bytes() == b"before after end"


def test_names_of_standard_output() -> None:
    """Standard output has several names."""
    names = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/stderr", "plan.json", None)
    assert [is_standard_output(name) for name in names] == [True] * 4 + [False] * 3


@pytest.mark.parametrize("kind", ["same", "dotted", "symbolic", "hard"])
def test_input_is_never_overwritten(kind: str, tmp_path: Path) -> None:
    """An output that is an input, by whatever name, is refused before anything is written."""
    source = tmp_path / "profile.json"
    source.write_bytes(b"profile")
    output = tmp_path / "out.json"
    if kind == "same":
        output = source
    elif kind == "dotted":
        output = tmp_path / "." / ".." / tmp_path.name / "profile.json"
    elif kind == "symbolic":
        output.symlink_to(source)
    else:
        output.hardlink_to(source)
    message = f"{re.escape(str(output))}: --output is the same file as the input .*profile.json \\[output-is-input\\]"
    with pytest.raises(UsageError, match=message):
        OutputFile(str(output), [str(source)])
    assert source.read_bytes() == b"profile"


def test_input_that_does_not_exist(tmp_path: Path) -> None:
    """An input that cannot be read is not this check's business."""
    OutputFile(str(tmp_path / "plan.json"), [str(tmp_path / "missing.json")]).write(b"data")
    assert (tmp_path / "plan.json").read_bytes() == b"data"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/plan.json", "no such directory"),
        (".", "is a directory"),
        ("", "empty file name"),
        ("a" * 300, "file name too long"),
        ("loop", "too many levels of symbolic links"),
        ("/dev/fd/987", "bad file descriptor"),
    ],
)
def test_unwritable_places(name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that cannot be written is refused at once, not after the search."""
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(UsageError, match=rf"cannot be written: {reason} \[output-not-writable\]"):
        OutputFile(name, [])


def test_directory_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that does not let us write is refused at once."""
    monkeypatch.setattr("os.access", lambda place, wish: place != tmp_path)
    with pytest.raises(UsageError, match="cannot be written: permission denied"):
        OutputFile(str(tmp_path / "plan.json"), [])


def test_standard_input_is_read_once() -> None:
    """Two inputs cannot both be standard input."""
    read_once("-", None)
    read_once("-", "profile.json")
    with pytest.raises(UsageError, match=r"'-' is given twice \[stdin-twice\]"):
        read_once("-", "-")
