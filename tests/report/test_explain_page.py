"""Tests of cpipe.report.explain and .explained: the page and the report of an explanation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import plan_of
from jsonschema import Draft202012Validator
from msgspec import json as msgspec_json
from msgspec.structs import replace
from oracle.cases import case
from sample_plans import MS, make_problem, one_f_one_b

from cpipe.analysis import explain_stated
from cpipe.ir import Bound, Plan, Problem, Schedule
from cpipe.ir.explanation import Explanation, Segment, WhatIf
from cpipe.report.document import encode_report, failure_report, report_schema
from cpipe.report.explain import explain_lines
from cpipe.report.explained import explain_report, load_balance, path_shares
from cpipe.report.figures import DeviceFigures, replay_figures
from cpipe.sim import Runs, critical_path, idle_parts, memory_peaks, simulate

WHAT_IFS = (
    WhatIf(change="none", microbatches=4, replay_ns=38 * MS, found_ns=35 * MS, bound_ns=20 * MS, evaluations=7),
    WhatIf(change="latency", subject="g0<->g1", microbatches=4, replay_ns=37 * MS, found_ns=34 * MS, bound_ns=19 * MS),
    WhatIf(change="memory", microbatches=4, replay_ns=38 * MS, found_ns=32 * MS, bound_ns=20 * MS),
    WhatIf(change="less-memory", subject="g0", microbatches=4, bound_ns=25 * MS),
    WhatIf(change="microbatch", microbatches=5, replay_ns=46 * MS, found_ns=45 * MS, bound_ns=25 * MS),
)


def explained(
    problem: Problem, schedule: Schedule, what_ifs: tuple[WhatIf, ...] = ()
) -> tuple[Plan, Explanation, tuple[DeviceFigures, ...]]:
    """Return a plan, its explanation with given what-ifs, and its figures."""
    plan, timeline = plan_of(problem, schedule), simulate(problem, schedule)
    plan = replace(plan, made_by=replace(plan.made_by, found_by="1f1b", evaluations=3, solver_nodes=2))
    runs = Runs(problem, schedule, timeline)
    explanation = Explanation(
        makespan_ns=timeline.makespan_ns,
        reached_ns=timeline.makespan_ns,
        bound=Bound(value_ns=20 * MS, proved_by="highs", reason="MILP with 9 binaries"),
        pipes=problem.pipes,
        path=critical_path(runs),
        idle=idle_parts(runs),
        what_ifs=what_ifs,
    )
    peaks = memory_peaks(problem, schedule.orders)
    return plan, explanation, replay_figures(plan, problem, schedule, timeline, peaks)


PROBLEM = make_problem(3, 4, latency_ms=1, capacity_bytes=9000)
PLAN, EXPLANATION, FIGURES = explained(PROBLEM, one_f_one_b(PROBLEM), WHAT_IFS)


def page(explanation: Explanation = EXPLANATION, *, top: int = 10, has_profile: bool = True) -> str:
    """Return the page of the sample plan."""
    return explain_lines(PLAN, explanation, FIGURES, top=top, has_profile=has_profile)


def test_page(golden: Callable[[str], None]) -> None:
    """The whole page of a small plan."""
    golden(page() + "\n")


def test_short_page(golden: Callable[[str], None]) -> None:
    """The same with two rows of each list: what is left out is counted."""
    golden(page(top=2) + "\n")


def test_page_of_a_plan_alone(golden: Callable[[str], None]) -> None:
    """What a plan tells by itself, and what it cannot."""
    stated = explain_stated(PLAN)
    golden(explain_lines(PLAN, stated, FIGURES, top=10, has_profile=False) + "\n")


def test_report(golden: Callable[[str], None]) -> None:
    """The whole report, which the published schema accepts."""
    report = explain_report(PLAN, EXPLANATION, FIGURES, profile_checked=True)
    document = msgspec_json.decode(encode_report(report))
    Draft202012Validator(report_schema()).validate(document)
    golden(msgspec_json.format(encode_report(report), indent=2).decode() + "\n")


@pytest.mark.parametrize("status", ["invalid", "error"])
def test_reports_without_answer(status: str) -> None:
    """A plan that cannot run and a call that fails have a report, too, with everything unknown null or empty."""
    report = explain_report(PLAN, None, profile_checked=False)
    failed = failure_report("explain", "error", ())
    document = msgspec_json.decode(encode_report(report if status == "invalid" else failed))
    Draft202012Validator(report_schema()).validate(document)
    assert (document["command"], document["status"], document["makespan_ms"]) == ("explain", status, None)
    assert document["path"] == document["what_ifs"] == []


def test_optimal_plan() -> None:
    """A plan that meets its bound is said to be the best there is."""
    best = replace(EXPLANATION, bound=replace(EXPLANATION.bound, value_ns=EXPLANATION.makespan_ns))
    assert (best.status, best.gap) == ("optimal", 0.0)
    assert "optimal: no order has a shorter makespan\n" in page(best)


def test_span_is_named_where_it_was_minimised() -> None:
    """Where the span was minimised the page says so: quality is of the span."""
    of_span = replace(EXPLANATION, objective="span", reached_ns=20 * MS)
    text = page(of_span)
    assert "span 20.000 ms, which was minimised" in text
    assert "optimal: no order has a shorter span" in text


def test_names_are_printable() -> None:
    """Names of users cannot colour the page or break its lines."""
    problem = make_problem(2, 2, names=("a\x1b[31m", "b\nc"))
    plan, explanation, figures = explained(problem, one_f_one_b(problem))
    text = explain_lines(plan, explanation, figures, top=10, has_profile=True)
    assert "\x1b" not in text
    assert "b\\nc" in text


def test_nothing_takes_time() -> None:
    """A job without durations has an empty path, and says so without dividing by it."""
    problem = case(1, [0], forward=0, input_grad=0, weight_grad=0)
    plan, explanation, figures = explained(problem, Schedule.from_text("0F0 0D0 0W0", 1))
    explanation = replace(explanation, bound=Bound(value_ns=0))
    text = explain_lines(plan, explanation, figures, top=10, has_profile=True)
    assert "Nothing in this job takes time." in text
    report = explain_report(plan, explanation, figures, profile_checked=True)
    assert (report.gap, report.load_balance, report.shares) == (0.0, 1.0, ())


def test_shares_add_up() -> None:
    """Shares are by kind and place, largest first; together they are the path."""
    shares = path_shares(EXPLANATION.path)
    assert sum(share.length for share in shares) == EXPLANATION.makespan_ns
    assert [share.length for share in shares] == sorted((share.length for share in shares), reverse=True)
    assert len({share[:3] for share in shares}) == len(shares)
    assert path_shares(()) == []


def test_reasons_in_words() -> None:
    """Runs of the path say what held them up: memory, queues, receives that were not posted, late sends."""
    pieces = [
        Segment(kind="compute", follows="memory", start_ns=0, end_ns=9 * MS, label="0F3", device=0),
        *(
            Segment(
                kind="bandwidth",
                follows=follows,  # type: ignore[arg-type]
                start_ns=start * MS,
                end_ns=(start + 1) * MS,
                label="0F3",
                device=0,
                carries="activation",
                pipe=1,
            )
            for start, follows in ((9, "queue"), (10, "window"), (11, "send"))
        ),
        Segment(kind="unknown", follows="order", start_ns=12 * MS, end_ns=13 * MS, label="", device=-1),
    ]
    text = page(replace(EXPLANATION, path=tuple(pieces), makespan_ns=13 * MS))
    assert "0F3, 0F3 held back by memory" in text
    assert "activation of 0F3, queued for the link, waited for a posted receive, sent late" in text
    assert "the plan's times do not say" in text
    assert "not explained by the plan's times" in text


def test_load_balance() -> None:
    """Balance is the mean of the busy times by the largest; 1 where nobody works."""
    busy = [replace(device, busy_ns=work) for device, work in zip(FIGURES, (4, 2, 3), strict=True)]
    assert load_balance(busy) == 0.75
    assert load_balance([]) == load_balance([replace(FIGURES[0], busy_ns=0)]) == 1.0


def test_no_bound() -> None:
    """Where nothing is proven the page does not make a bound of 0 out of it."""
    text = page(replace(EXPLANATION, bound=Bound(value_ns=0, reason="as nobody looked")))
    assert "feasible: nobody knows how much a better order would save\n" in text
    assert "bound: none, as nobody looked\n" in text
