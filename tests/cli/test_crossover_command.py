"""Tests of `cpipe crossover`: models and profiles, the page, the report, files, and calls that are wrong."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from command_line import call, profile_document, spawn, write_json
from jsonschema import Draft202012Validator

from cpipe.report.document import report_schema

MODEL = ("--parameters", "5e6", "--hidden", "500", "--sequence", "500", "--devices", "2", "--forward-ms", "1")
QUICK = ("--method", "greedy-crosspipe", "--refinements", "1", "--microbatches", "4", "--latency-ms", "0.5")


def crossed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    """Return the report of a call, held against the schema."""
    outcome = call(capsys, "crossover", *arguments, "--json")
    assert outcome.code == code
    Draft202012Validator(report_schema()).validate(outcome.document)
    return outcome.document


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a profile of four devices in two sites."""
    document = profile_document(4, 4)
    for index, device in enumerate(document["devices"]):
        device["site"] = "ab"[index // 2]
    document["links"] = [{"between": ["a", "b"], "latency_ms": 2, "bandwidth_gbit_s": 10}]
    return write_json(tmp_path / "profile.json", document)


def test_page(capsys: pytest.CaptureFixture[str]) -> None:
    """The page has a line per bandwidth, and says where the faster side changes, or that it does not."""
    outcome = call(capsys, "crossover", *MODEL, *QUICK, "--bandwidth-gbit-s", "1,10")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("2 devices in two sites, 2 stages, 4 microbatches; latency 0.500 ms each way\n")
    assert "messages of 1.00 MB, or an all-reduce of 10.00 MB" in outcome.out
    assert "at all of these bandwidths" in outcome.out or "is faster below about" in outcome.out
    assert "\x1b" not in outcome.out


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    """The report has both sides at every bandwidth, times against closed forms, and the number of searches."""
    report = crossed(capsys, *MODEL, *QUICK, "--bandwidth-gbit-s", "1,2")
    assert (report["message_bytes"], report["gradient_bytes"]) == (1_000_000, 10_000_000)
    assert (report["latency_ms"], report["ideal_ms"]) == (0.5, 12)
    for point in report["points"]:
        reduction = 80 / point["bandwidth_gbit_s"]  # 10 MB [ms]
        assert point["plain"]["makespan_ms"] == pytest.approx(report["local"]["makespan_ms"] + 1 + reduction, abs=1e-5)
        assert point["overlapped"]["makespan_ms"] <= point["plain"]["makespan_ms"]
        for side in ("pipeline", "overlapped", "plain"):
            assert point[side]["lower_bound_ms"] <= point[side]["makespan_ms"]
    assert report["num_solves"] == 1 + 2 * len(report["points"])


def test_defaults_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Unsaid are: twice as many microbatches as devices, two replicas, 4 ms, D and W as long as F."""
    few = ("--method", "greedy-crosspipe", "--bandwidth-gbit-s", "8", "--refinements", "0")
    short = crossed(capsys, *MODEL, *few)
    long = crossed(
        capsys,
        *(*MODEL, *few, "--microbatches", "4", "--replicas", "2", "--latency-ms", "4", "--microbatch-size", "1"),
        *("--input-grad-ms", "1", "--weight-grad-ms", "1", "--bytes-per-element", "2", "--memory-factor", "1"),
        *("--placement", "ud"),
    )
    assert short == long


def test_placements(capsys: pytest.CaptureFixture[str]) -> None:
    """``auto`` takes the better of one stage a device and two in a V, on each side."""
    times = {
        name: crossed(capsys, *MODEL, *QUICK, "--bandwidth-gbit-s", "8", "--placement", name)["points"][0]
        for name in ("ud", "wave", "auto")
    }
    for side in ("pipeline", "plain"):
        best = min(times[name][side]["makespan_ms"] for name in ("ud", "wave"))
        assert times["auto"][side]["makespan_ms"] <= best


def test_profile(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile gives the stages; its gradients are taken from it or from --parameters."""
    report = crossed(capsys, profile, "--parameters", "1e6", "--bandwidth-gbit-s", "10", "--refinements", "0")
    assert (report["latency_ms"], report["gradient_bytes"]) == (2, 2_000_000)
    missing = call(capsys, "crossover", profile)
    assert missing.code == 2
    assert "[no-gradients]" in missing.err
    assert "hint: give --parameters" in missing.err


def test_data_parallelism_is_left_out_aloud(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile's own data parallelism is on neither side, and a warning says so."""
    document = profile_document(2, 2, data_parallel={"mode": "ddp", "replicas": 2})
    for index, device in enumerate(document["devices"]):
        device["site"] = "ab"[index]
    for stage in document["stages"]:
        stage["gradient_bytes"] = 1000
    document["links"] = [{"between": ["a", "b"]}]
    path = write_json(tmp_path / "job.json", document)
    report = crossed(capsys, path, "--bandwidth-gbit-s", "10", "--refinements", "0")
    assert [found["code"] for found in report["diagnostics"]] == ["data-parallel-left-out"]


def test_range_of_bandwidths(capsys: pytest.CaptureFixture[str]) -> None:
    """A range names its first value, doublings of it, and its last."""
    report = crossed(capsys, *MODEL, *QUICK, "--refinements", "0", "--bandwidth-gbit-s", "4..20")
    assert [point["bandwidth_gbit_s"] for point in report["points"]] == [4, 8, 16, 20]


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CSV and picture are written, the same bytes every time."""
    table, svg = tmp_path / "curves.csv", tmp_path / "curves.svg"
    arguments = (*MODEL, *QUICK, "--bandwidth-gbit-s", "1,4", "-o", table, "--svg", svg)
    first = call(capsys, "crossover", *arguments)
    contents = table.read_bytes(), svg.read_bytes()
    assert call(capsys, "crossover", *arguments) == first
    assert (table.read_bytes(), svg.read_bytes()) == contents
    lines = list(csv.DictReader(table.read_text().splitlines()))
    assert float(lines[0]["bandwidth_gbit_s"]) == 1
    assert b"bandwidth between the sites" in contents[1]


def test_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Slanted curves are painted in the PNG too: their colour is between the marks."""
    image = pytest.importorskip("PIL.Image")
    png = tmp_path / "curves.png"
    assert call(capsys, "crossover", *MODEL, *QUICK, "--bandwidth-gbit-s", "1,1000", "--png", png).code == 0
    with image.open(png) as picture:
        middle = [picture.getpixel((picture.width // 3, y)) for y in range(160, picture.height - 220)]
    assert {(0, 114, 178), (213, 94, 0), (204, 121, 167)} & {*middle}


def test_quiet_and_verbose() -> None:
    """Progress goes to stderr when asked for; the answer is the same."""
    arguments = (*MODEL, *QUICK, "--bandwidth-gbit-s", "4")
    loud, quiet = spawn("crossover", *arguments, "-v"), spawn("crossover", *arguments, "-q")
    assert "pipeline across sites at 4 Gbit/s" in loud.err
    assert quiet.err == ""
    assert loud.out == quiet.out != ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "without a profile --parameters, --hidden, --sequence, --devices, --forward-ms must be given"),
        (MODEL[2:], "without a profile --parameters must be given [model-incomplete]"),
        ((*MODEL, "--replicas", "3"), "--replicas: expected an even number in [2, 1000000], half in each site, got 3"),
        ((*MODEL, "--devices", "1"), "--devices: expected a number in [2, 4096], got 1 [value-out-of-range]"),
        ((*MODEL, "--parameters", "0"), "--parameters: expected a number in [1, 1e+15], got 0"),
        ((*MODEL, "--forward-ms", "-1"), "--forward-ms: expected milliseconds in [0, 1e9], got -1"),
        ((*MODEL, "--latency-ms", "nan"), "--latency-ms: expected milliseconds in [0, 1e9], got nan"),
        ((*MODEL, "--memory-factor", "0.4"), "--memory-factor: expected a factor in [0.5, 1e6], got 0.4"),
        ((*MODEL, "--refinements", "21"), "--refinements: expected a number in [0, 20], got 21"),
        ((*MODEL, "--microbatches", "0"), "--microbatches: expected a number in [1, 65536], got 0"),
        ((*MODEL, "--method", "milp"), "--method: expected one of greedy, greedy-crosspipe, auto, got 'milp'"),
        ((*MODEL, "--placement", "loop"), "--placement: expected one of ud, wave, auto, got 'loop'"),
        ((*MODEL, "--bandwidth-gbit-s", "0"), "such as 32..8192, got '0' [bandwidth-list]"),
        ((*MODEL, "--bandwidth-gbit-s", "64,"), "such as 32..8192, got '64,' [bandwidth-list]"),
        ((*MODEL, "--bandwidth-gbit-s", "64..32"), "such as 32..8192, got '64..32' [bandwidth-list]"),
        ((*MODEL, "--bandwidth-gbit-s", "inf"), "such as 32..8192, got 'inf' [bandwidth-list]"),
        (
            (*MODEL, "--bandwidth-gbit-s", ",".join(map(str, range(1, 66)))),
            "--bandwidth-gbit-s: expected at most 64 bandwidths, got 65 [bandwidth-list]",
        ),
        (
            ("x.json", "--hidden", "4", "--forward-ms", "1"),
            "--hidden, --forward-ms: a profile says this itself [profile-and-model]",
        ),
    ],
)
def test_wrong_calls(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong call names the options and the value, with exit code 2, before any work."""
    outcome = call(capsys, "crossover", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.out == ""


def test_failure_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failing call gives a report of its own: an error, or a proof that nothing fits."""
    report = crossed(capsys, tmp_path / "no.json", code=3)
    assert (report["command"], report["status"]) == ("crossover", "error")
    document = profile_document(2, 2)
    for index, device in enumerate(document["devices"]):
        device |= {"site": "ab"[index], "memory_bytes": 5}
    document["links"] = [{"between": ["a", "b"]}]
    path = write_json(tmp_path / "profile.json", document)
    report = crossed(capsys, path, "--parameters", "1e6", code=4)
    assert report["status"] == "infeasible"
    assert report["diagnostics"][0]["file"] == str(path)


def test_no_work_has_no_ideal(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing takes time, there is no ideal that a pipeline could be so many times as long as."""
    free = ["--parameters", "1e6", "--hidden", "8", "--sequence", "8", "--devices", "2", "--forward-ms", "0"]
    outcome = call(capsys, "crossover", *free, *QUICK, "--bandwidth-gbit-s", "1")
    assert outcome.code == 0
    row = next(line.split() for line in outcome.out.splitlines() if line.split()[:1] == ["1"])
    assert row[2] == "none"
