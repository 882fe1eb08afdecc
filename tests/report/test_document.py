"""Tests of cpipe.report.document: the JSON reports and their schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from sample_plans import make_problem, one_f_one_b, sample_plan

from cpipe.errors import Diagnostic
from cpipe.ir import Bound, SolveResult
from cpipe.report.document import (
    Report,
    SolveReport,
    encode_report,
    failure_report,
    report_schema,
    simulate_report,
    solve_report,
    validate_report,
)
from cpipe.report.figures import plan_figures
from cpipe.sim import simulate

SCHEMA_FILE = Path(__file__).parents[2] / "schemas" / "report.v1.schema.json"
WARNING = Diagnostic(code="slow-link", message="looks like idle time was measured", severity="warning")


def solved(bound_ns: int) -> SolveReport:
    """Return the report of 1F1B on two devices (makespan 25 ms), with a bound."""
    problem = make_problem(2, 4, capacity_bytes=9000)
    schedule = one_f_one_b(problem)
    plan = sample_plan(problem, schedule)
    result = SolveResult(
        schedule=schedule,
        timeline=simulate(problem, schedule),
        bound=Bound(value_ns=bound_ns, reason="load of device 0"),
        method="auto",
        found_by="1f1b",
    )
    return solve_report(result, plan, plan_figures(plan, problem), [WARNING])


def every_report() -> list[Report]:
    """Return one report of each shape."""
    problem = make_problem(2, 4)
    schedule = one_f_one_b(problem)
    plan = sample_plan(problem, schedule)
    timeline = simulate(problem, schedule)
    fault = Diagnostic(code="usage", message="no such option", file="a.json", line=3, column=4)
    return [
        solved(20_000_000),
        validate_report("gloo", True, [WARNING]),
        simulate_report(plan, timeline, plan_figures(plan)),
        simulate_report(plan, None, diagnostics=[fault]),
        *(failure_report(command, "error", [fault]) for command in ("solve", "validate", "simulate", "show", None)),
    ]


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as a script reads it."""
    document: dict[str, Any] = json.loads(encode_report(report))
    return document


def test_odd_text_is_escaped() -> None:
    """Text that UTF-8 cannot hold, as file names can bring in, is escaped; the document stays one line of JSON."""
    fault = Diagnostic(code="file-not-found", message="no such file", file="\udcff.json", hint="\ud800")
    (line,) = encode_report(failure_report("validate", "error", [fault])).decode().splitlines()
    (found,) = json.loads(line)["diagnostics"]
    assert (found["file"], found["hint"]) == ("\\udcff.json", "\\ud800")


def test_solve_report() -> None:
    """A search reports status, times [ms], gap, who found and proved it, and every device."""
    document = as_json(solved(20_000_000))
    assert document.pop("devices") == [
        {
            "id": f"g{device}",
            "busy_ms": 20.0,
            "bubble": pytest.approx(0.2),
            "peak_bytes": 5000 + 1000 * held,
            "static_bytes": 5000,
            "capacity_bytes": 9000,
        }
        for device, held in ((0, 2), (1, 1))
    ]
    assert document.pop("diagnostics")[0]["severity"] == "warning"
    assert document == {
        "format": "cpipe.report",
        "version": 1,
        "command": "solve",
        "status": "feasible",
        "method": "auto",
        "found_by": "1f1b",
        "objective": "makespan",
        "makespan_ms": 25.0,
        "span_ms": 25.0,
        "lower_bound_ms": 20.0,
        "gap": 0.2,
        "proved_by": "bound",
        "placement": [0, 1],
    }


def test_optimal_report() -> None:
    """A makespan that meets its bound is optimal, with gap 0."""
    document = as_json(solved(25_000_000))
    assert (document["status"], document["gap"]) == ("optimal", 0)


@pytest.mark.parametrize(
    ("command", "status", "expected"),
    [
        ("solve", "infeasible", "infeasible"),
        ("solve", "no_solution", "no_solution"),
        ("solve", "error", "error"),
        ("validate", "error", "error"),
        ("simulate", "error", "error"),
        ("show", "error", "error"),
        (None, "error", "error"),
    ],
)
def test_failure_report(command: str | None, status: str, expected: str) -> None:
    """A failure keeps the command's own shape; what is not known is null."""
    fault = Diagnostic(code="usage", message="no such option")
    document = as_json(failure_report(command, status, [fault], "see the help"))
    assert (document["command"], document["status"]) == (command, expected)
    assert document["diagnostics"] == [
        {
            "severity": "error",
            "code": "usage",
            "message": "no such option",
            "file": None,
            "path": None,
            "line": None,
            "column": None,
            "hint": "see the help",
        }
    ]
    assert document.get("makespan_ms") is None


@pytest.mark.parametrize(("severity", "expected"), [("error", "invalid"), ("warning", "valid")])
def test_warnings_do_not_invalidate(severity: str, expected: str) -> None:
    """Only errors make a plan invalid."""
    found = msgspec.convert({"code": "digest", "message": "stale", "severity": severity}, Diagnostic)
    assert validate_report("channels", False, [found]).status == expected


def test_simulate_report_without_timeline() -> None:
    """A plan that cannot finish is invalid and has no makespan, only its claim."""
    problem = make_problem(2, 4)
    document = as_json(simulate_report(sample_plan(problem, one_f_one_b(problem)), None))
    assert (document["status"], document["makespan_ms"], document["claimed_ms"]) == ("invalid", None, 25.0)


@pytest.mark.parametrize("index", range(len(every_report())))
def test_reports_meet_their_schema(index: int) -> None:
    """Every report is one line of JSON that the published schema accepts, and only with all its fields."""
    data = encode_report(every_report()[index])
    assert data.count(b"\n") == 1
    document = json.loads(data)
    validator = jsonschema.Draft202012Validator(report_schema())
    validator.validate(document)
    for field in document:
        assert not validator.is_valid({key: value for key, value in document.items() if key != field}), field
    assert not validator.is_valid(document | {"surprise": 1})


def test_schema_is_fresh() -> None:
    """The published schema is the one that the types give; `cpipe schema report` prints it."""
    text = msgspec.json.format(msgspec.json.encode(report_schema()), indent=2) + b"\n"
    assert SCHEMA_FILE.read_bytes() == text


def test_schema_is_a_schema() -> None:
    """The published schema is itself valid JSON Schema."""
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA_FILE.read_bytes()))
