"""Tests of `cpipe export` and `cpipe import`: what they write where, and their exit codes."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path

import jsonschema
import pytest
from command_line import ROOT, call, profile_document, spawn, write_json
from helpers import signed
from msgspec.structs import replace

from cpipe.plan import decode_plan, encode_plan, load_plan, safe_transports
from cpipe.plan.exchange import TIMELINE_COLUMNS
from cpipe.report.document import report_schema

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
    assert again.err == outcome.err
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
        (
            ("export", "p.json", "--to", "csv"),
            "--to: expected one of torch-csv, megatron, deepspeed, timeline-csv, got 'csv' [unknown-value]",
        ),
        (("export", "p.json", "--to", "megatron"), "missing option '--layers', which megatron needs [usage]"),
        (
            ("export", "p.json", "--to", "deepspeed", "--layers", "8"),
            "--layers is for --to megatron, not for deepspeed [option-of-another-kind]",
        ),
        (
            ("export", "p.json", "--to", "timeline-csv", "--fsdp", "--format", "compute_comms"),
            "--format is for --to torch-csv, not for timeline-csv [option-of-another-kind]",
        ),
        (
            ("export", "p.json", "--to", "torch-csv", "--profile", "q.json"),
            "--profile is for --to timeline-csv, not for torch-csv [option-of-another-kind]",
        ),
        (("export", "-", "--to", "timeline-csv", "--profile", "-"), "standard input can be read only once"),
        (("export", "p.json", "--to", "torch-csv", "--format", "x"), "--format: expected one of compute_only"),
        (
            ("export", "p.json", "--to", "torch-csv", "--fsdp"),
            "--fsdp needs --format compute_comms: else torch gathers by itself [fsdp-format]",
        ),
        (("import", "t.csv", "--from", "x", "--profile", "p"), "--from: expected one of torch-csv, "),
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


def exported(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    """Return the report of a call with --json, which its schema knows, and whose faults stand on stderr too."""
    outcome = call(capsys, "export", *arguments, "--json")
    document = outcome.document
    jsonschema.validate(document, report_schema())
    assert document["command"] == "export"
    assert outcome.code == {"done": 0, "refused": 1, "error": 3}[document["status"]]
    assert [line.rpartition(" ")[2] for line in outcome.err.splitlines()] == [
        f"[{found['code']}]" for found in document["diagnostics"]
    ]
    return document


OPTIONS = {"torch-csv": (), "megatron": ("--layers", "8,8"), "deepspeed": (), "timeline-csv": ()}


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_kind_goes_to_stdout_to_a_file_or_into_the_report(
    kind: str, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same text stands on stdout, in the file of -o, and in the document of --json when there is no file."""
    arguments = (plan, "--to", kind, *OPTIONS[kind])
    shown = call(capsys, "export", *arguments)
    assert (shown.code, shown.err) == (0, "")
    target = tmp_path / "exported"
    assert call(capsys, "export", *arguments, "-o", target) == (0, "", "")
    assert target.read_text(encoding="utf-8") == shown.out
    assert call(capsys, "export", *arguments, "-o", "-") == shown
    document = exported(capsys, *arguments)
    assert (document["status"], document["target"], document["output"]) == ("done", kind, None)
    assert document["text"] == shown.out
    target.unlink()
    document = exported(capsys, *arguments, "-o", target)
    assert (document["output"], document["text"]) == (str(target), None)
    assert target.read_text(encoding="utf-8") == shown.out


@pytest.mark.parametrize("kind", ["megatron", "deepspeed"])
def test_what_a_target_cannot_run_is_not_written(
    kind: str, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan that a target cannot run is exit code 1 with the op named; no file is made, none is changed."""
    table, plan, target = tmp_path / "gpipe.csv", tmp_path / "gpipe.json", tmp_path / "kept"
    table.write_text("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n", encoding="utf-8")
    assert call(capsys, "import", table, "--from", "torch-csv", "--profile", profile, "-o", plan).code == 0
    target.write_text("kept", encoding="utf-8")
    outcome = call(capsys, "export", plan, "--to", kind, *OPTIONS[kind], "-o", target)
    assert (outcome.code, outcome.out) == (1, "")
    assert f"error: {plan}: $.ranks[1].ops[" in outcome.err
    assert "rank 1: compute op 1, F of stage 1 mb 1: " in outcome.err
    assert target.read_text(encoding="utf-8") == "kept"
    document = exported(capsys, plan, "--to", kind, *OPTIONS[kind], "-o", tmp_path / "new")
    assert (document["status"], document["output"], document["text"]) == ("refused", None, None)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
def test_two_documents_do_not_share_stdout(output: str, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the text cannot go to standard output too."""
    outcome = call(capsys, "export", plan, "--to", "deepspeed", "--json", "-o", output)
    assert (outcome.code, outcome.document["status"]) == (2, "error")
    assert f"--json and --output {output} both want standard output [stdout-twice]" in outcome.err


def test_plans_that_cannot_be_read_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that is missing is exit code 3, in the document too."""
    document = exported(capsys, tmp_path / "none.json", "--to", "deepspeed")
    assert document["status"] == "error"


def test_faulty_plans_have_no_timeline(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan with faults has no times to show: exit code 1 with what `validate` says of it."""
    table, plan = tmp_path / "table.csv", tmp_path / "plan.json"
    table.write_text(SWAPPED, encoding="utf-8")
    call(capsys, "import", table, "--from", "torch-csv", "--profile", profile, "-o", plan)
    document = exported(capsys, plan, "--to", "timeline-csv")
    assert document["status"] == "refused"
    assert "swapped" in {found["code"] for found in document["diagnostics"]}  # type: ignore[attr-defined]


def test_wrong_layers_are_wrong_calls(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Layers for another number of stages are exit code 2."""
    outcome = call(capsys, "export", plan, "--to", "megatron", "--layers", "8,8,8")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "error: --layers: expected an entry for each of 2 stages, got 3 [layers]\n"


def test_megatron_arguments_are_bash(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bash reads the file: each argument is one word, the layout with its bars and stars unquoted."""
    target = tmp_path / "megatron.sh"
    assert call(capsys, "export", plan, "--to", "megatron", "--layers", "3,t*4", "-o", target).code == 0
    script = f'source "{target}"; printf "%s\\n" "${{MEGATRON_ARGS[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout.splitlines() == [
        "--num-layers",
        "7",
        "--pipeline-model-parallel-size",
        "2",
        "--pipeline-model-parallel-layout",
        "Et*3|t*4L",
    ]


def test_what_no_file_says_is_warned_of(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That stages recompute is a matter of the model: a warning with every kind of file that runs, none with times."""
    loaded = load_plan(plan)
    again = tmp_path / "recompute.json"
    again.write_bytes(encode_plan(signed(replace(loaded, problem=replace(loaded.problem, recompute=(0, 1))))))
    for kind, options in OPTIONS.items():
        outcome = call(capsys, "export", again, "--to", kind, *options)
        assert outcome.code == 0
        assert ("stages that recompute: 0, 1; the file cannot say so" in outcome.err) is (kind != "timeline-csv")
        assert outcome.err.count("[not-exported]") == outcome.err.count("\n")


def test_timelines_on_a_profile(plan: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --profile messages have their window and arrival; one for another job is exit code 3."""
    shown = call(capsys, "export", plan, "--to", "timeline-csv", "--profile", profile)
    assert shown.code == 0
    header, *rows = csv.reader(shown.out.splitlines())
    assert tuple(header) == TIMELINE_COLUMNS
    arrivals = [row[header.index("arrival_ns")] for row in rows if row[header.index("target")]]
    assert len(arrivals) == 4
    assert all(arrivals)
    other = write_json(tmp_path / "other.json", profile_document(3, 2))
    refused = call(capsys, "export", plan, "--to", "timeline-csv", "--profile", other)
    assert (refused.code, refused.out) == (3, "")
    assert "[different-size]" in refused.err


def test_deepspeed_text_is_json(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text names its target, and every instruction list ends with the optimizer's step."""
    document = json.loads(call(capsys, "export", plan, "--to", "deepspeed").out)
    assert document["target"] == "deepspeed.runtime.pipe.schedule"
    assert [rank["steps"][-1][-1] for rank in document["ranks"]] == [["OptimizerStep"]] * 2


def test_imports_have_a_report(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json an import gives one document, and the plan goes to the file of -o alone."""
    table, target = tmp_path / "table.csv", tmp_path / "plan.json"
    for text, code, status in ((TABLE, 0, "done"), (SWAPPED, 1, "invalid")):
        table.write_text(text, encoding="utf-8")
        outcome = call(capsys, "import", table, "--from", "torch-csv", "--profile", profile, "-o", target, "--json")
        assert (outcome.code, outcome.document["command"], outcome.document["status"]) == (code, "import", status)
        assert load_plan(target).made_by.method == "torch-csv"
