"""What holds for every command: surroundings change nothing, a file that cannot be read is told in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from command_line import Outcome, call, profile_document, write_json

from cpipe.cli import app as program
from cpipe.cli.app import COMMANDS, main
from cpipe.report.document import report_schema

NAMES = [command.__name__ for command in COMMANDS]
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 100,
}

# One call of each command that ends well at once; those that measure this machine give other numbers each time.
CALLS: dict[str, list[str]] = {
    "solve": ["solve", "PROFILE", "--method", "1f1b"],
    "validate": ["validate", "PLAN", "--profile", "PROFILE"],
    "simulate": ["simulate", "PLAN", "--profile", "PROFILE"],
    "show": ["show", "PLAN"],
    "explain": ["explain", "PLAN"],
    "diff": ["diff", "PLAN", "OTHER"],
    "compare": ["compare", "PROFILE", "--method", "1f1b", "--memory", "equal"],
    "crossover": ["crossover", "PROFILE", "--parameters", "1e6", "--bandwidth-gbit-s", "1,2", "--refinements", "0"],
    "sweep": ["sweep", "PROFILE", "--method", "1f1b", "--microbatches", "2", "--jobs", "1"],
    "check": ["check", "PLAN"],
    "export": ["export", "PLAN", "--to", "torch-csv"],
    "import": ["import", "CONFIG", "--from", "hf-config", "--devices", "2"],
    "import-plan": ["import", "TABLE", "--from", "torch-csv", "--profile", "PROFILE"],
    "init": ["init"],
    "schema": ["schema", "profile"],
    "doctor": ["doctor"],
}
MEASURING = {"profile", "run"}
ENVIRONMENTS = {
    "no-color": {"NO_COLOR": "1", "TERM": "dumb"},
    "force-color": {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TERM": "xterm-256color", "GITHUB_ACTIONS": "true"},
    "narrow": {"COLUMNS": "20", "LINES": "5"},
}
SLOW = {"crossover", "doctor", "sweep"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Write what the calls read; return each name's file."""
    folder = tmp_path_factory.mktemp("every")
    document = profile_document()
    for device, site in zip(document["devices"], ("east", "west"), strict=True):
        device["site"] = site
    document["links"] = [{"between": ["east", "west"], "latency_ms": 1, "bandwidth_gbit_s": 100}]
    profile = write_json(folder / "profile.json", document)
    for name, method in (("plan.json", "1f1b"), ("other.json", "gpipe")):
        assert main(["solve", str(profile), "--method", method, "-q", "-o", str(folder / name)]) == 0
    assert main(["export", str(folder / "plan.json"), "--to", "torch-csv", "-o", str(folder / "table.csv")]) == 0
    names = {"PROFILE": "profile.json", "PLAN": "plan.json", "OTHER": "other.json", "TABLE": "table.csv"}
    write_json(folder / "config.json", CONFIG)
    return {name: str(folder / file) for name, file in {**names, "CONFIG": "config.json"}.items()}


def has_json(command: str) -> bool:
    """Return whether a command takes ``--json``."""
    root: Any = typer.main.get_command(program.app)
    return any("--json" in parameter.opts for parameter in root.commands[command].params)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what this test run's own surroundings say out of the environment."""
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TERM", "COLUMNS", "LINES", "GITHUB_ACTIONS", "CI"):
        monkeypatch.delenv(name, raising=False)


def test_every_command_has_a_call() -> None:
    """No command is left out below."""
    assert {call[0] for call in CALLS.values()} | MEASURING == set(NAMES)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CALLS]
)
@pytest.mark.usefixtures("plain")
def test_surroundings_change_no_byte(
    name: str,
    as_json: bool,
    files: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In a pipe, colour, terminal and width of the surroundings change neither the answer nor what is told."""
    arguments = [files.get(argument, argument) for argument in CALLS[name]]
    if as_json and not has_json(arguments[0]):
        pytest.skip("its answer is JSON anyhow")
    arguments += ["--json"] * as_json
    before = captured(capfd, arguments)
    assert before.code in (0, 1 if name == "diff" else 0)
    assert "\x1b" not in before.out + before.err
    if as_json:
        assert before.out.count("\n") == 1
        jsonschema.validate(before.document, report_schema())
    for label, environ in ENVIRONMENTS.items():
        if name == "show" and not as_json and label in ("force-color", "narrow"):
            continue  # the chart is what these two are for: its colour and its width
        with monkeypatch.context() as patch:
            for key, value in environ.items():
                patch.setenv(key, value)
            assert captured(capfd, arguments) == before, label


def captured(capfd: pytest.CaptureFixture[str], arguments: list[str]) -> Outcome:
    """Run a call; return its code and what it and its processes wrote."""
    capfd.readouterr()
    code = main(arguments)
    return Outcome(code, *capfd.readouterr())


# Each way in which a command reads a file: FILE is the one that is wrong.
READS = {
    "solve": ["solve", "FILE"],
    "validate": ["validate", "FILE"],
    "validate-profile": ["validate", "PLAN", "--profile", "FILE"],
    "simulate": ["simulate", "FILE", "--profile", "PROFILE"],
    "simulate-profile": ["simulate", "PLAN", "--profile", "FILE"],
    "show": ["show", "FILE"],
    "show-other": ["show", "PLAN", "FILE"],
    "show-profile": ["show", "PLAN", "--profile", "FILE"],
    "explain": ["explain", "FILE"],
    "explain-profile": ["explain", "PLAN", "--profile", "FILE"],
    "diff": ["diff", "FILE", "PLAN"],
    "diff-other": ["diff", "PLAN", "FILE"],
    "diff-profile": ["diff", "PLAN", "OTHER", "--profile", "FILE"],
    "compare": ["compare", "FILE"],
    "crossover": ["crossover", "FILE"],
    "sweep": ["sweep", "FILE", "--microbatches", "2"],
    "export": ["export", "FILE", "--to", "torch-csv"],
    "export-profile": ["export", "PLAN", "--to", "timeline-csv", "--profile", "FILE"],
    "import-config": ["import", "FILE", "--from", "hf-config", "--devices", "2"],
    "import-profile": ["import", "TABLE", "--from", "torch-csv", "--profile", "FILE"],
    "run": ["run", "FILE"],
    "run-profile": ["run", "PLAN", "--profile", "FILE"],
    "run-emulate": ["run", "PLAN", "--model", "sleep", "--emulate", "FILE"],
}
UNREADABLE = {"missing": None, "folder": None, "text": b"makespan: 3\n"}


@pytest.mark.parametrize("wrong", UNREADABLE)
@pytest.mark.parametrize("name", READS)
def test_files_that_cannot_be_read(
    name: str, wrong: str, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is missing, a folder or no JSON is one line that names it, exit code 3, and one document."""
    bad = tmp_path / "bad.json"
    if content := UNREADABLE[wrong]:
        bad.write_bytes(content)
    elif wrong == "folder":
        bad.mkdir()
    arguments = [{**files, "FILE": str(bad)}.get(argument, argument) for argument in READS[name]]
    plain = call(capsys, *arguments)
    errors = [line for line in plain.err.splitlines() if not line.startswith("hint: ")]
    assert (plain.code, plain.out, len(errors)) == (3, "", 1), plain.err
    assert re.fullmatch(rf"error: {re.escape(str(bad))}:(\d+:\d+:)? .* \[[a-z0-9-]+\]", errors[0])
    reported = call(capsys, *arguments, "--json")
    assert (reported.code, reported.err) == (3, plain.err)
    assert reported.out.count("\n") == 1
    jsonschema.validate(reported.document, report_schema())
    assert (reported.document["command"], reported.document["status"]) == (arguments[0], "error")
    (fault,) = reported.document["diagnostics"]
    assert (fault["severity"], fault["file"]) == ("error", str(bad))


@pytest.mark.parametrize("wrong", ["missing", "text"])
def test_check_names_what_cannot_be_read(
    wrong: str, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` gives such a plan a verdict of its own, so that the others are checked all the same."""
    bad = tmp_path / "bad.json"
    if content := UNREADABLE[wrong]:
        bad.write_bytes(content)
    outcome = call(capsys, "check", bad, files["PLAN"], "--json")
    assert outcome.code == 1
    assert [plan["verdict"] for plan in outcome.document["plans"]] == ["unreadable", "ok"]
    assert len(outcome.document["plans"][0]["diagnostics"]) == 1


@pytest.mark.parametrize("name", NAMES)
def test_help_speaks_with_one_voice(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command begins with a sentence in the imperative, and each argument and option says what it is for."""
    root: Any = typer.main.get_command(program.app)
    command = root.commands[name]
    first = command.help.split("\n\n")[0].replace("\n", " ").strip()
    assert re.fullmatch(r"[A-Z][a-z]+ .*[^.]\.", first)
    assert not re.match(r"[A-Z][a-z]*[^s]s ", first)
    for parameter in command.params:
        text = parameter.help or ""
        if parameter.name == "help":
            continue
        assert text, parameter.name
        assert text[-1] in ".]", (parameter.name, text)
        assert text[:1].isupper() or re.match(r"[a-z0-9-]+[:, (]", text) or text.startswith("-"), text
    assert json.dumps(command.help).isascii()
