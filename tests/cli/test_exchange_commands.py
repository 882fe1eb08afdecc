"""Tests of `cpipe export` and `cpipe import`: what they write where, and their exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import ROOT, call, profile_document, spawn, write_json

from cpipe.plan import decode_plan, load_plan, safe_transports

TABLE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
SWAPPED = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
    "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n"
)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Return a profile of two devices and two microbatches."""
    return write_json(tmp_path / "profile.json", profile_document(2, 2))


@pytest.fixture
def plan(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return the plan of TABLE."""
    table = tmp_path / "table.csv"
    table.write_text(TABLE, encoding="utf-8")
    target = tmp_path / "plan.json"
    outcome = call(capsys, "import", table, "--from", "torch-csv", "--profile", profile, "-o", target)
    assert (outcome.code, outcome.out) == (0, "")
    return target


def test_import_writes_a_valid_plan(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A right table becomes a plan that `validate` accepts, made by torch-csv, its times those of the profile."""
    assert call(capsys, "validate", plan, "--profile", profile).code == 0
    loaded = load_plan(plan)
    assert loaded.made_by.method == "torch-csv"
    assert loaded.claims.makespan_ns >= loaded.claims.lower_bound_ns > 0


def test_export_is_the_table_again(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was imported is exported as it was, to stdout or to a file."""
    assert call(capsys, "export", plan, "--to", "torch-csv") == (0, TABLE, "")
    target = tmp_path / "again.csv"
    assert call(capsys, "export", plan, "--to", "torch-csv", "-o", target) == (0, "", "")
    assert target.read_text(encoding="utf-8") == TABLE


def test_import_shows_the_plan_on_stdout(profile: Path) -> None:
    """Without -o the plan goes to stdout and a line about it to stderr; - reads the table from standard input."""
    outcome = spawn("import", "-", "--from", "torch-csv", "--profile", profile, stdin=TABLE.encode())
    assert outcome.code == 0
    assert decode_plan(outcome.out.encode(), "-").problem.microbatches == 2
    assert "makespan" in outcome.err


def test_faulty_tables_are_written_as_they_are(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table with faults gives exit code 1 and its plan all the same: `validate` reports the same faults of it."""
    table, target = tmp_path / "table.csv", tmp_path / "plan.json"
    table.write_text(SWAPPED, encoding="utf-8")
    outcome = call(capsys, "import", table, "--from", "torch-csv", "--profile", profile, "-o", target)
    assert outcome.code == 1
    assert "swapped, silent data corruption [swapped]" in outcome.err
    again = call(capsys, "validate", target)
    assert again.code == 1
    assert again.err.replace(f"{target}: ", "") == outcome.err
    refused = call(capsys, "export", target, "--to", "torch-csv", "--format", "compute_comms")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.count("[swapped]") == 1


def test_unreadable_tables(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table that is missing or holds what is no action is exit code 3, with row and cell."""
    missing = call(capsys, "import", tmp_path / "none.csv", "--from", "torch-csv", "--profile", profile)
    assert (missing.code, missing.out) == (3, "")
    assert "cannot read: No such file or directory [unreadable]" in missing.err
    table = tmp_path / "table.csv"
    table.write_text("0F0,0F0xyz\n", encoding="utf-8")
    wrong = call(capsys, "import", table, "--from", "torch-csv", "--profile", profile)
    assert wrong.code == 3
    assert f"error: {table}:1:2: rank 0: expected an action" in wrong.err


def test_nccl_groups_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    """Messages that could hang on one NCCL group are exported with a warning for each such group."""
    shipped = ROOT / "plans" / "m70-2dc-lat2-bw2-1x" / "plan.json"
    outcome = call(capsys, "export", shipped, "--to", "torch-csv", "--format", "compute_comms")
    safe = safe_transports(load_plan(shipped))
    unsafe = [name for name in ("nccl-pair", "nccl-rank", "nccl-dir2") if name not in safe]
    assert outcome.code == 0
    assert [line.split(": ")[2] for line in outcome.err.splitlines()] == unsafe
    assert outcome.err.count("[torch-transport]") == len(unsafe) > 0
    assert call(capsys, "export", shipped, "--to", "torch-csv").err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "p.json", "--to", "csv"), "--to: expected one of torch-csv, got 'csv' [unknown-value]"),
        (("export", "p.json", "--to", "torch-csv", "--format", "x"), "--format: expected one of compute_only"),
        (
            ("export", "p.json", "--to", "torch-csv", "--fsdp"),
            "--fsdp needs --format compute_comms: else torch gathers by itself [fsdp-format]",
        ),
        (("import", "t.csv", "--from", "x", "--profile", "p"), "--from: expected one of torch-csv, got 'x'"),
        (("import", "-", "--from", "torch-csv", "--profile", "-"), "standard input can be read only once"),
        (
            ("import", "t.csv", "--from", "torch-csv", "--profile", "p", "--transport", "tcp"),
            "--transport: expected one of channels, gloo",
        ),
    ],
)
def test_wrong_calls(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Kinds, formats and transports that do not exist, and options that do not fit together, are exit code 2."""
    outcome = call(capsys, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


def test_inputs_are_never_written(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither command writes over what it reads."""
    assert "[output-is-input]" in call(capsys, "export", plan, "--to", "torch-csv", "-o", plan).err
    same = call(capsys, "import", plan, "--from", "torch-csv", "--profile", profile, "-o", profile)
    assert "[output-is-input]" in same.err
