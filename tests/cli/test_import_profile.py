"""Tests of `cpipe import` from a model's configuration and from a sheet: the whole way to a plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import Outcome, call, spawn, write_json
from helpers import assert_plan_ok
from model_configs import CONFIGS, PARAMETERS, config

from cpipe.cli.import_ import import_
from cpipe.compiler import SolveOptions, compile_profile, problem_for_plan
from cpipe.profile import Profile, encode_profile, load_profile, parse_profile
from cpipe.profile.importers import Costing
from cpipe.report.document import report_schema

DC = ("--devices", "dc-a:2,dc-b:2", "--link", "dc-a,dc-b:5:100")
SHEET = "layer,forward_ms,input_grad_ms,weight_grad_ms\n"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """Return the configuration of Llama 3 8B."""
    return write_json(tmp_path / "config.json", CONFIGS["llama3-8b"])


def imported(capsys: pytest.CaptureFixture[str], kind: str, file: Path, *options: object) -> Profile:
    """Import a file and return the profile that goes to stdout."""
    outcome = call(capsys, "import", file, "--from", kind, *options)
    assert outcome.code == 0, outcome.err
    return parse_profile(outcome.out.encode(), "-")


def sheet(tmp_path: Path, *times: float) -> Path:
    """Return a sheet of layers whose F, D and W take a third of these times each [ms]."""
    path = tmp_path / "costs.csv"
    lines = [f"layer{index},{time},{time},{time}\n" for index, time in enumerate(times)]
    path.write_text(SHEET + "".join(lines), encoding="utf-8")
    return path


def counts(capsys: pytest.CaptureFixture[str], kind: str, file: Path, *options: object) -> list[int]:
    """Return how many layers each stage gets."""
    outcome = call(capsys, "import", file, "--from", kind, "--json", "-q", *options)
    assert outcome.code == 0, outcome.err
    layers: list[int] = outcome.document["layers"]
    return layers


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return what is said about a call that is wrong."""
    outcome = call(capsys, "import", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    return outcome.err


def test_405b_at_the_published_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Llama 3 405B over two sites, PP 16 and TP 8: stages of 8 layers take 108.85 ms, the ends hold 7 and theirs."""
    path = write_json(tmp_path / "config.json", CONFIGS["llama3-405b"])
    setting = "--tensor-parallel 8 --gpu-tflops 500 --sequence 8192 --microbatches 32 --data-parallel 64"
    links = "--link dc-a,dc-b:4:512 --link-replicas 64 --dp-link 0.01:400"
    options = ("--devices", "dc-a:8,dc-b:8", *setting.split(), *links.split())
    assert counts(capsys, "hf-config", path, *options) == [7, *[8] * 14, 7]
    profile = imported(capsys, "hf-config", path, *options)
    assert {round(stage.forward_ms, 2) for stage in profile.stages[1:-1]} == {108.85}
    assert {stage.output_bytes for stage in profile.stages[:-1]} == {268_435_456}
    assert profile.links[0].bandwidth_gbit_s == 512 / 64
    assert {device.memory_bytes for device in profile.devices} == {640 * 10**9}
    assert profile.data_parallel is not None
    assert (profile.data_parallel.mode, profile.data_parallel.replicas) == ("zero1", 64)


def test_imported_profiles_solve(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile that was imported becomes a plan that validates."""
    profile = imported(capsys, "hf-config", llama, *DC, "--microbatches", 6)
    plan = compile_profile(profile, SolveOptions(method="greedy")).plan
    assert_plan_ok(plan, problem_for_plan(plan, profile))


def test_all_layers_are_there(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stages' parameters are those of the model, two bytes each, and the head's time is on the last stage."""
    profile = imported(capsys, "hf-config", llama, *DC)
    assert sum(stage.parameter_bytes for stage in profile.stages) == 2 * PARAMETERS["llama3-8b"]
    report = call(capsys, "import", llama, "--from", "hf-config", *DC, "--json").document
    assert report["layers"] == [8, 9, 9, 6]  # the head is worth 2.4 layers
    assert report["parameters"] == PARAMETERS["llama3-8b"]
    even = imported(capsys, "hf-config", llama, *DC, "--split", "8,8,8,8")
    assert even.stages[3].forward_ms > even.stages[1].forward_ms == even.stages[0].forward_ms


def test_first_stage_has_no_input_gradient(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """D of the first stage takes no time and W all of the backward, unless it is to be split as the others."""
    whole, split = (
        imported(capsys, "hf-config", llama, *DC, "--split", "8,8,8,8", "--first-stage", how).stages[0]
        for how in ("whole", "split")
    )
    assert whole.input_grad_ms == 0.0
    assert whole.weight_grad_ms == pytest.approx((split.input_grad_ms or 0) + (split.weight_grad_ms or 0))
    assert whole.held_for_weight_grad_bytes == whole.activation_bytes


@pytest.mark.parametrize(
    ("times", "stages", "expected"),
    [
        ([1] * 5, 4, [1, 1, 1, 2]),
        ([1] * 42, 16, [2] * 6 + [3] * 10),
        ([0, 2, 0, 1, 1, 1, 1, 0, 0, 2, 0], 4, None),
        ([1, 1, 1, 2], 4, [1, 1, 1, 1]),
    ],
)
def test_balanced_split(
    times: list[float], stages: int, expected: list[int] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Layers are split so that the longest stage is the shortest possible and none is empty, always the same way."""
    found = counts(capsys, "csv", sheet(tmp_path, *times), "--devices", stages)
    assert min(found) >= 1
    assert sum(found) == len(times)
    if expected is not None:
        assert found == expected
    else:  # weights at the ends and in between: every stage takes 2
        starts = [sum(found[:index]) for index in range(stages)]
        assert [sum(times[start : start + count]) for start, count in zip(starts, found, strict=True)] == [2] * 4


def test_heavy_ends_never_make_a_stage_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight layers on eight stages are one each, however heavy embedding and head are; on nine, an error says why."""
    path = write_json(tmp_path / "config.json", config("llama3-8b", num_hidden_layers=8, vocab_size=10**7))
    assert counts(capsys, "hf-config", path, "--devices", 8) == [1] * 8
    said = refused(capsys, path, "--from", "hf-config", "--devices", 3, "--chunks", 3)
    assert said.splitlines() == [
        "error: expected at most 8 stages, as many as there are layers, got 9 [too-many-stages]",
        "hint: no stage may be empty: take fewer --devices, --chunks or --stages",
    ]


@pytest.mark.parametrize(
    ("options", "placement"),
    [
        (["--chunks", "2"], "g0 g1 g0 g1"),
        (["--chunks", "2", "--placement", "wave"], "g0 g1 g1 g0"),
        (["--stages", "4", "--placement", "ud"], "g0 g0 g1 g1"),
        (["--stages", "3"], "g0 g0 g1"),
        ([], "g0 g1"),
    ],
)
def test_placements(options: list[str], placement: str, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Chunks go around, in waves, or stay together; without a choice they go around where that comes out even."""
    profile = imported(capsys, "hf-config", llama, "--devices", 2, *options)
    assert " ".join(stage.device for stage in profile.stages) == placement


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_golden_profile(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], None]
) -> None:
    """What is assumed of a published model, and the profile that comes out, are those of the golden file."""
    path = write_json(tmp_path / "config.json", CONFIGS[name])
    outcome = call(capsys, "import", path, "--from", "hf-config", *DC, "--data-parallel", 2, "--tensor-parallel", 8)
    document = json.loads(outcome.out)
    del document["extensions"]  # the same assumptions once more
    golden(outcome.err + json.dumps(document, indent=1) + "\n")


def test_every_assumption_is_told_and_kept(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Assumptions stand on stderr, in the report and in the profile, the same everywhere."""
    target = tmp_path / "profile.json"
    outcome = call(capsys, "import", llama, "--from", "hf-config", *DC, "-o", target, "--json")
    kept = (load_profile(target).extensions or {})["assumptions"]
    assert outcome.document["assumptions"] == kept
    lines = [line.strip() for line in outcome.err.splitlines()]
    for one in kept:
        assert any(line.startswith(f"{one['name']} = ") and line.endswith(f"({one['option']})") for line in lines)
    names = [one["name"] for one in kept]
    assert len(set(names)) == len(names)
    assert {"gpu_tflops", "gpu_memory", "split", "microbatches", "static_bytes", "activation_factor"} <= set(names)


def test_every_number_can_be_changed(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option of an assumption exists, and each field of the costing has an option."""
    found = call(capsys, "import", llama, "--from", "hf-config", *DC, "--data-parallel", 2, "--json").document
    help_text = call(capsys, "import", "--help").out
    for one in found["assumptions"]:
        for option in one["option"].split(", "):
            assert option in help_text or option.startswith("the profile's "), option
    renamed = {"main_gradient_bytes": "gradient_bytes", "replicas": "data_parallel"}
    fields = {renamed.get(name, name) for name in Costing.__struct_fields__}
    assert fields <= set(import_.__annotations__)


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (["--gpu-memory", "40", "--tensor-parallel", "2"], "devices.0.memory_bytes", 80 * 10**9),
        (["--microbatches", "5"], "microbatches", 5),
        (["--name", "mine"], "name", "mine"),
        (["--microbatch-size", "2", "--sequence", "1024"], "stages.0.output_bytes", 2 * 1024 * 4096 * 2),
        (["--dtype", "fp32", "--sequence", "1024"], "stages.0.output_bytes", 1024 * 4096 * 4),
        (["--zero", "0", "--data-parallel", "4"], "data_parallel.mode", "ddp"),
        (["--dp-link", "1:8", "--data-parallel", "4"], "data_parallel.bandwidth_gbit_s", 8.0),
        (["--intra-link", "0.5:64"], "links.1.latency_ms", 0.5),
    ],
)
def test_options_reach_the_profile(
    options: list[str], field: str, value: object, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is given stands in the profile."""
    outcome = call(capsys, "import", llama, "--from", "hf-config", *DC, *options)
    found: Any = json.loads(outcome.out)
    for key in field.split("."):
        found = found[int(key)] if key.isdigit() else found[key]
    assert found == value


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--gpu-tflops", 500),
        ("--tensor-parallel", 2),
        ("--attention", "standard"),
        ("--attention-backward", 3),
        ("--recompute", "full"),
        ("--activation-factor", 99),
        ("--held-factor", 1),
        ("--gradient-bytes", 2),
        ("--optimizer-bytes", 8),
        ("--gpu-memory", 20),
        ("--link-replicas", 3),
    ],
)
def test_options_change_the_costs(option: str, value: object, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of these options changes what the profile says, beyond the note of its own assumption."""
    before, after = (imported(capsys, "hf-config", llama, *DC, *more) for more in ((), (option, value)))
    assert (before.devices, before.stages, before.links) != (after.devices, after.stages, after.links)


@pytest.mark.slow
def test_offered_recomputation_pays(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that is short of memory finishes sooner once its stages may keep their inputs alone."""
    options = (*DC, "--tensor-parallel", 2, "--sequence", 16384, "--gpu-memory", 32, "--microbatches", 4)
    profiles = [imported(capsys, "hf-config", llama, *options, *more) for more in ((), ("--offer-recompute",))]
    makespans = []
    for profile in profiles:
        plan = compile_profile(profile, SolveOptions(method="greedy")).plan
        assert_plan_ok(plan, problem_for_plan(plan, profile))
        makespans.append(plan.claims.makespan_ns)
    assert makespans[1] < 0.9 * makespans[0]
    kept = [stage.recompute.activation_bytes for stage in profiles[1].stages if stage.recompute is not None]
    assert kept == [8 * 16384, *[2 * 16384 * 4096] * 3]


def test_no_sequence_parallel(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without sequence parallelism a group of GPUs keeps more."""
    options = (*DC, "--tensor-parallel", 4)
    shared = imported(capsys, "hf-config", llama, *options)
    copied = imported(capsys, "hf-config", llama, *options, "--no-sequence-parallel")
    assert copied.stages[1].activation_bytes > shared.stages[1].activation_bytes


def test_sheet_to_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sheet with a mark, semicolons, decimal commas and CRLF becomes a profile, read from stdin too."""
    text = (
        "\ufefflayer;count;forward_ms;input_grad_ms;weight_grad_ms;activation_bytes;output_bytes\r\n"
        "emb;1;0,5;0;0,5;1000;64\r\nblock;6;2,5;2,5;1,5;2000;64\r\nhead;1;4;4;4;3000;0\r\n"
    )
    path = tmp_path / "costs.csv"
    path.write_bytes(text.encode())
    profile = imported(capsys, "csv", path, "--devices", 4, "--split", "3,2,2,1")
    assert [stage.forward_ms for stage in profile.stages] == [5.5, 5.0, 5.0, 4.0]
    assert [stage.weight_grad_ms for stage in profile.stages] == [8.5, 3.0, 3.0, 4.0]
    assert {device.memory_bytes for device in profile.devices} == {None}
    outcome = spawn("import", "-", "--from", "csv", "--devices", 4, "--split", "3,2,2,1", "-q", stdin=text.encode())
    assert (outcome.code, outcome.err) == (0, "")
    assert parse_profile(outcome.out.encode(), "-") == profile


def test_same_input_same_bytes(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two imports give the same bytes, which are those of the profile they hold."""
    first, second = (call(capsys, "import", llama, "--from", "hf-config", *DC).out for _ in range(2))
    assert first == second == encode_profile(parse_profile(first.encode(), "-")).decode()


def test_names_that_no_profile_can_have(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that the profile cannot hold is refused with its place there."""
    said = refused(capsys, llama, "--from", "hf-config", "--devices", 2, "--name", "a\tb")
    assert said == 'error: $.name: expected a string without control characters, got "a\\tb" [control-character]\n'


def test_columns_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes that a sheet does not give count as 0, and are named."""
    path = tmp_path / "costs.csv"
    path.write_text("forward_ms,full_backward_ms,activation_bytes\n1,2,3\n1,2,3\n", encoding="utf-8")
    document = call(capsys, "import", path, "--from", "csv", "--devices", 2, "--json").document
    (absent,) = [one["value"] for one in document["assumptions"] if one["name"] == "absent_columns"]
    assert "output_bytes" in absent
    assert "static_bytes" in absent
    assert "activation_bytes" not in absent


def test_too_little_memory_is_a_warning(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that does not fit is written all the same, with a warning for each device that is short."""
    outcome = call(capsys, "import", llama, "--from", "hf-config", *DC, "--gpu-memory", 1)
    assert outcome.code == 0
    assert outcome.err.count("warning: ") >= 4
    assert call(capsys, "import", llama, "--from", "hf-config", *DC, "--gpu-memory", 1, "-q").err == ""


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("hf-config", "", "missing option '--devices', which hf-config needs [usage]"),
        ("torch-csv", "", "missing option '--profile', which torch-csv needs [usage]"),
        ("csv", "--devices 4 --dtype bf16", "--dtype is for --from hf-config, not for csv"),
        ("csv", "--devices 4 --profile p", "[option-of-another-kind]"),
        ("hf-config", "--devices 4 --sequence 0", "--sequence: expected a number in [1, 1000000000], got 0"),
        ("hf-config", "--devices 4 --gpu-tflops nan", "--gpu-tflops: expected a number > 0"),
        ("hf-config", "--devices 4 --data-parallel 2000000", "--data-parallel: expected at most 1000000 replicas"),
        ("hf-config", "--devices 4 --dtype int8", "--dtype: expected one of bf16, fp16, fp32, got 'int8'"),
        ("hf-config", "--devices 4 --zero 3", "level 3 reduces gradients in every microbatch, which is not modelled"),
        ("hf-config", "--devices 4 --zero 2", "[unsupported-mode]"),
        ("hf-config", "--devices 4 --zero 4", "--zero: expected 0 or 1, got 4"),
        ("hf-config", "--devices 4 --recompute full --offer-recompute", "not for --recompute full [recompute-twice]"),
        ("hf-config", "--devices 4 --chunks 2 --stages 8", "[two-stage-counts]"),
        ("hf-config", "--devices 4 --stages 3", "at least 4 stages, one for each device, got 3 [too-few-stages]"),
        ("hf-config", "--devices 3 --tensor-parallel 5", "a divisor of the model's 32 heads, got 5 [not-a-divisor]"),
        ("hf-config", "--devices 4 --stages 6 --placement wave", "[placement-does-not-apply]"),
        ("hf-config", "--devices 4 --split 8,8,8", "expected 4 numbers, one for each stage, got 3 [bad-split]"),
        ("hf-config", "--devices 4 --split 9,8,8,8", "numbers that add up to the 32 layers, got 33 [bad-split]"),
        ("hf-config", "--devices 4 --split 16,0,8,8", "a number >= 1 of layers for each stage, got '0'"),
        ("hf-config", "--devices 4 --split 8,8,8,-8", "got '-8' [bad-split]"),
        ("hf-config", "--devices a:2,b:2", 'no link joins site "a" and site "b"'),
        ("hf-config", "--devices a:2,b:2 --link a,b:5:1 --link b,a:5:1", "[duplicate-link]"),
    ],
)
def test_wrong_calls(kind: str, options: str, message: str, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Options that are wrong, missing, of another kind or do not fit the model are exit code 2, each with its rule."""
    assert message in refused(capsys, llama, "--from", kind, *options.split())


@pytest.mark.parametrize(
    ("kind", "name", "content", "expected"),
    [
        ("hf-config", "config.json", b"{", "config.json:1:2: the file ends before the JSON document does [truncated]"),
        ("hf-config", "config.json", b"{}", 'config.json: $: the required key "model_type" is missing [missing-key]'),
        ("csv", "costs.csv", b"layer,forward_ms\n", "costs.csv:1:1: expected the columns input_grad_ms and"),
        ("csv", "costs.csv", b"\x00\x01", 'costs.csv:1:1: unknown column "'),
    ],
)
def test_wrong_files(
    kind: str, name: str, content: bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is wrong is exit code 3, with its place, and nothing is written."""
    path, target = tmp_path / name, tmp_path / "profile.json"
    path.write_bytes(content)
    outcome = call(capsys, "import", path, "--from", kind, "--devices", 2, "-o", target)
    assert (outcome.code, outcome.out) == (3, "")
    assert f"error: {tmp_path}/{expected}" in outcome.err
    assert not target.exists()


def test_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there is exit code 3 under either kind."""
    for kind in ("hf-config", "csv"):
        outcome = call(capsys, "import", tmp_path / "none", "--from", kind, "--devices", 2)
        assert (outcome.code, outcome.err.count("no such file [file-not-found]")) == (3, 1)


def test_inputs_are_never_written(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The profile never goes over the configuration."""
    assert "[output-is-input]" in refused(capsys, llama, "--from", "hf-config", "--devices", 2, "-o", llama)


def documents(llama: Path, capsys: pytest.CaptureFixture[str]) -> list[Outcome]:
    """Return calls with --json, right and wrong."""
    wrong = llama.with_name("wrong.json")
    wrong.write_text("[", encoding="utf-8")
    return [
        call(capsys, "import", llama, "--from", "hf-config", *DC, "--json"),
        call(capsys, "import", wrong, "--from", "hf-config", *DC, "--json"),
        call(capsys, "import", llama, "--from", "hf-config", "--json"),
    ]


def test_reports(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json there is exactly one document, right or wrong, and it meets the schema."""
    found = documents(llama, capsys)
    assert [outcome.code for outcome in found] == [0, 3, 2]
    for outcome in found:
        jsonschema.validate(outcome.document, report_schema())
    assert [outcome.document["status"] for outcome in found] == ["done", "error", "error"]
    data = json.dumps(found[0].document["profile"]).encode()
    assert len(parse_profile(data, "-").stages) == 4
