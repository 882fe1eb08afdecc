"""Tests of `cpipe doctor`: what is missing or broken is told, and never ends it."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import jsonschema
import pytest
from command_line import call, spawn

from cpipe import __version__
from cpipe.cli import checkup
from cpipe.cli.checkup import LIBRARIES, Library, Part, library_part
from cpipe.report.document import report_schema


def part_of(parts: list[dict[str, object]], name: str) -> dict[str, object]:
    """Return the part of this name."""
    (part,) = [part for part in parts if part["name"] == name]
    return part


def fake(folder: Path, name: str, code: str, version: str = "1.0") -> None:
    """Install a library of one module in a folder, which is to be put on the path."""
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


def test_a_healthy_core(capsys: pytest.CaptureFixture[str]) -> None:
    """Here the core works: every library of it is there, a schedule is made, HiGHS proves a tiny optimum."""
    outcome = call(capsys, "doctor", "--json")
    document = outcome.document
    jsonschema.validate(document, report_schema())
    assert (outcome.code, outcome.err, document["status"]) == (0, "", "healthy")
    assert document["cpipe"] == __version__
    assert document["python"] == ".".join(map(str, sys.version_info[:3]))
    core = [part for part in document["parts"] if part["needed"] == "core"]
    assert {part["state"] for part in core} <= {"works", "present"}
    assert {"msgspec", "typer", "rich", "pulp", "highspy"} <= {part["name"] for part in core}
    assert part_of(document["parts"], "solve by HiGHS")["message"] == "a tiny problem solved: optimal"
    assert part_of(document["parts"], "highspy")["version"] == metadata.version("highspy")


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """For people there is a line for each part, and the verdict is the last."""
    lines = call(capsys, "doctor").out.splitlines()
    assert lines[0].startswith(f"cpipe {__version__}, Python ")
    for library in LIBRARIES:
        assert sum(line.startswith(f"{library.name} ") for line in lines) == 1
    assert lines[-1] == "the core works"


def test_optional_libraries_are_not_imported() -> None:
    """Without --full neither torch nor OR-Tools nor Dask is imported merely to tell its version."""
    script = "from cpipe.cli.app import main; main(['doctor']); import sys; print(*sys.modules)"
    done = spawn_python(script)
    loaded = {name.split(".")[0] for name in done.split()}
    assert not loaded & {"torch", "ortools", "distributed", "dask", "PIL", "numpy", "highspy"}


def spawn_python(script: str) -> str:
    """Return the last line that a script prints in an interpreter of its own."""
    import subprocess

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "state", "said"),
    [
        ("", "works", ""),
        ("raise RuntimeError('no\\nluck')", "broken", "RuntimeError: no luck"),
        ("import no_such_thing", "broken", "ModuleNotFoundError: No module named 'no_such_thing'"),
    ],
)
def test_libraries_that_are_there(
    code: str, state: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core library works when it can be imported; what it raises is told in one line."""
    name = f"fake_{state}_{len(code)}"
    fake(tmp_path, name, code)
    monkeypatch.syspath_prepend(str(tmp_path))
    part = library_part(Library(name, name, "core"))
    assert (part.state, part.version, part.message) == (state, "1.0", said)
    assert (part.command is None) == (state == "works")


def test_library_that_is_missing() -> None:
    """What is not installed comes with the command that gets it."""
    part = library_part(Library("no-such-library", "no_such_library", "pictures", "png"))
    assert part == Part("no-such-library", "pictures", "missing", None, "not installed", "pip install 'cpipe[png]'")


def test_library_without_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose files are gone is broken, although its metadata is there."""
    fake(tmp_path, "hollow", "")
    (tmp_path / "hollow.py").unlink()
    monkeypatch.syspath_prepend(str(tmp_path))
    part = library_part(Library("hollow", "hollow", "core"))
    assert (part.state, part.message) == ("broken", "no module hollow to import")


@pytest.mark.parametrize(
    ("version", "wanted", "state"),
    [
        ("1.0", ">=1.0,<2", "works"),
        ("1.9.9", ">=1.0,<2", "works"),
        ("2.0", ">=1.0,<2", "broken"),
        ("0.9", ">=1.0,<2", "broken"),
        ("1.5+cpu", ">=1.5", "works"),
    ],
)
def test_versions(version: str, wanted: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version outside those that cpipe asks for is broken, and the message says which fit."""
    name = "fake_version_" + "".join(filter(str.isalnum, version))
    fake(tmp_path, name, "", version)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(metadata, "requires", lambda _: [f"{name} ({wanted})"])
    part = library_part(Library(name, name, "core"))
    assert (part.state, part.version) == (state, version)
    assert part.message == ("" if state == "works" else "expected " + ",".join(sorted(wanted.split(","), reverse=True)))


@pytest.mark.parametrize(
    ("probe", "state", "said"),
    [
        ("print('a banner'); print('gloo yes')", "works", "gloo yes"),
        ("raise SystemExit('no gloo')", "broken", "no gloo"),
        ("import os; os.abort()", "broken", "ended with exit code -6"),
        ("import no_such_thing", "broken", "ModuleNotFoundError: No module named 'no_such_thing'"),
    ],
)
def test_probes(probe: str, state: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --full an optional library is tried in a process of its own, whose crash is told as any other end."""
    name = f"probed_{len(probe)}"
    fake(tmp_path, name, "")
    monkeypatch.syspath_prepend(str(tmp_path))
    library = Library(name, name, "pictures", "png", probe)
    assert library_part(library).state == "present"
    part = library_part(library, full=True)
    assert (part.state, part.message) == (state, said)


def test_broken_back_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A back end of the core that fails is exit code 1, told in its line and in the verdict."""

    def fail(*arguments: object, **options: object) -> object:
        raise OSError("libhighs.so: cannot open")

    monkeypatch.setattr("cpipe.solve.milp.solve_milp", fail)
    outcome = call(capsys, "doctor")
    assert (outcome.code, outcome.err) == (1, "")
    assert "broken" in next(line for line in outcome.out.splitlines() if line.startswith("solve by HiGHS"))
    assert "OSError: libhighs.so: cannot open" in outcome.out
    assert outcome.out.splitlines()[-1] == "the core is broken"


def test_wrong_optimum(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A solver that proves something else than the known optimum is broken."""
    monkeypatch.setattr(checkup, "_BEST_NS", 19_000_000)
    outcome = call(capsys, "doctor", "--json")
    assert outcome.code == 1
    assert part_of(outcome.document["parts"], "solve by HiGHS")["message"] == "RuntimeError: proved 20000000 ns"


def test_broken_optional_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is optional may be missing: the core works all the same, and nothing is tried with it."""
    real = metadata.version

    def version(name: str) -> str:
        if name in ("ortools", "torch"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    outcome = call(capsys, "doctor", "--json")
    parts = outcome.document["parts"]
    assert outcome.code == 0
    assert part_of(parts, "torch")["command"] == "pip install 'cpipe[torch]'"
    assert part_of(parts, "ortools")["state"] == "missing"
    assert "solve by CP-SAT" not in [part["name"] for part in parts]


def test_report_without_msgspec(tmp_path: Path) -> None:
    """When msgspec itself is broken there is a report all the same, without a traceback."""
    (tmp_path / "msgspec.py").write_text("raise ImportError('bad wheel')", encoding="utf-8")
    root = Path(checkup.__file__).parents[2]
    outcome = spawn("doctor", "--json", environ={"PYTHONPATH": f"{tmp_path}:{root}"})
    document = json.loads(outcome.out)
    assert (outcome.code, outcome.err, document["status"]) == (1, "", "broken")
    assert part_of(document["parts"], "msgspec")["message"] == "ImportError: bad wheel"
    assert set(document) == {
        "format",
        "version",
        "command",
        "status",
        "cpipe",
        "python",
        "platform",
        "parts",
        "diagnostics",
    }
