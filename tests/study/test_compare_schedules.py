"""Tests of cpipe.study.compare: rows at equal and at own memory, what does not fit, the front, less memory."""

from __future__ import annotations

from typing import Any

import pytest
from command_line import profile_document
from helpers import assert_plan_ok
from hypothesis import given, settings
from hypothesis import strategies as st
from m70 import profile_text
from msgspec.structs import replace
from strategies import profiles

from cpipe.compiler import problem_for_plan
from cpipe.errors import ProfileError
from cpipe.ir.comparison import Row, on_front
from cpipe.profile import Profile, parse_profile
from cpipe.solve.methods import METHODS, STATIC_METHODS
from cpipe.study.compare import SHARES, Compared, compare_profile

QUICK = (*STATIC_METHODS, "greedy-crosspipe")


def profile_of(document: dict[str, Any]) -> Profile:
    """Return a profile from its document."""
    return parse_profile(profile_text({"name": "", **document}).encode(), "profile.json")


def units(placement: list[int], microbatches: int, cap: int | None = None, **stage: Any) -> Profile:
    """Return stages of F = D = W = 1 ms that hold one byte a microbatch, on free links."""
    costs = {"forward_ms": 1, "input_grad_ms": 1, "weight_grad_ms": 1, "activation_bytes": 1} | stage
    costs = {name: value for name, value in costs.items() if value is not None}
    return profile_of(
        {
            "format": "cpipe.profile",
            "version": 1,
            "microbatches": microbatches,
            "devices": [
                {"id": f"g{rank}"} | ({} if cap is None else {"memory_bytes": cap})
                for rank in range(max(placement) + 1)
            ],
            "stages": [{"id": f"s{index}", "device": f"g{rank}", **costs} for index, rank in enumerate(placement)],
        }
    )


def row_of(found: Compared, method: str, placement: str = "profile", *, share: float | None = None) -> Row:
    """Return the one row of a method on a placement."""
    (row,) = [
        row
        for row in found.comparison.rows
        if (row.method, row.placement, row.memory_share) == (method, placement, share)
    ]
    return row


def makespan(row: Row) -> float:
    """Return what a row that fits takes [ms]."""
    assert row.reached is not None
    return row.reached.makespan_ns / 1e6


def check(found: Compared, profile: Profile) -> None:
    """Hold a comparison against what it says of itself."""
    rows, front = found.comparison.rows, found.comparison.front
    keys = [(row.reached.makespan_ns, row.reached.peak_bytes) for row in rows if row.reached is not None]
    assert keys == sorted(keys)
    assert len(front) == len(keys)
    for key, is_front in zip(keys, front, strict=True):
        beaten = any(other != key and other[0] <= key[0] and other[1] <= key[1] for other in keys)
        assert is_front <= (not beaten)
        assert is_front or beaten or keys.count(key) > 1
    for row, plan in zip(rows, found.plans, strict=True):
        assert (row.outcome == "fits") == (row.reached is not None) == (plan is not None) == (row.reason == "")
        if row.reached is not None and plan is not None:
            assert row.reached.makespan_ns == plan.claims.makespan_ns
            assert row.reached.bound_ns <= row.reached.makespan_ns
            for peak, limit in zip(row.reached.peaks, found.comparison.capacities, strict=True):
                assert limit is None or peak <= limit
            if found.comparison.capacities == tuple(spec.memory_bytes for spec in profile.devices):
                assert_plan_ok(plan, problem_for_plan(plan, profile))
        if row.searched is not None:
            assert row.own is not None
            assert row.searched.makespan_ns <= row.own.makespan_ns
            assert all(mine <= theirs for mine, theirs in zip(row.searched.peaks, row.own.peaks, strict=True))
        for shortfall in row.shortfalls:
            assert shortfall.short_bytes > 0
            assert f"short by {max(entry.short_bytes for entry in row.shortfalls)}" in row.reason


@pytest.mark.slow
@given(profiles(max_stages=4, max_microbatches=4), st.sampled_from(["both", "equal", "own"]))
@settings(max_examples=8)
def test_rows_hold_what_they_say(document: dict[str, Any], memory: Any) -> None:
    """Rows are sorted, within their limits, on the front if nothing beats them, and a search never loses."""
    profile = profile_of(document)
    found = compare_profile(profile, methods=("1f1b", "zb-h1", "zb-v", "chimera", "greedy-crosspipe"), memory=memory)
    check(found, profile)


@pytest.mark.parametrize(("stages", "limit"), [(4, 8), pytest.param(8, 16, marks=pytest.mark.slow)])
def test_every_method_is_there(stages: int, limit: int) -> None:
    """Each method has a row on each placement that it can have, or one that says why it has none."""
    profile = units([stage % 4 for stage in range(stages)], 8, limit)
    found = compare_profile(profile, methods=QUICK)
    check(found, profile)
    rows = [row for row in found.comparison.rows if row.memory_share is None]
    assert {row.method for row in rows} == {*QUICK}
    applied = {row.method for row in rows if row.outcome != "does-not-apply"}
    line = {"gpipe", "1f1b", "1f1b-split", "zb-h1", "zb-h2", "chimera", "dualpipe", "greedy-crosspipe"}
    if stages == 4:
        assert applied == line
        assert "needs two stages on each device" in next(
            row.reason for row in found.comparison.rows if row.method == "zb-v"
        )
    else:
        assert applied >= {"interleaved-1f1b", "interleaved-zb", "looped-bfs", "zb-v", "v-min", "hanayo", "dualpipe-v"}
        places = {row.placement for row in rows if row.method == "greedy-crosspipe"}
        assert places == {"profile", "ud", "wave"}  # the loop is the profile's own
        assert [row.placement for row in found.comparison.rows if row.method == "zb-v"] == ["wave"]


def test_peaks_of_1f1b_and_gpipe() -> None:
    """Four devices and eight microbatches: 1F1B holds 4, 3, 2, 1 activations, GPipe 8 on every device."""
    found = compare_profile(units([0, 1, 2, 3], 8), methods=("1f1b", "gpipe"))
    own = {row.method: row.own for row in found.comparison.rows}
    assert own["1f1b"] is not None
    assert own["1f1b"].peaks == (4, 3, 2, 1)
    assert own["gpipe"] is not None
    assert own["gpipe"].peaks == (8, 8, 8, 8)


def test_what_does_not_fit_says_where_and_by_how_much() -> None:
    """GPipe with 5 bytes a device is short by 3 on all four, and still tells what it would take without limits."""
    row = row_of(compare_profile(units([0, 1, 2, 3], 8, 5), methods=("1f1b", "gpipe")), "gpipe")
    assert row.outcome == "does-not-fit"
    assert [(entry.device, entry.needed_bytes, entry.short_bytes) for entry in row.shortfalls] == [
        (f"g{rank}", 8, 3) for rank in range(4)
    ]
    assert row.reason == "needs 8 bytes on g0, which has 5: short by 3, and 3 more"
    assert row.own is not None
    assert row.own.makespan_ns == 33_000_000  # (8 + 3) of F and B: no bubble but the ramp's


@pytest.mark.parametrize(("latency", "expected"), [(0, 66), (2, 82), (4, 98), (10, 146)])
def test_latency_on_the_middle_hop(latency: int, expected: int) -> None:
    """1F1B pays a slow middle hop n times, 66 + 8 L; a search with no more memory never does."""
    document = {
        "format": "cpipe.profile",
        "version": 1,
        "microbatches": 8,
        "devices": [{"id": f"g{rank}", "site": "ab"[rank // 2], "memory_bytes": 4} for rank in range(4)],
        "stages": [
            {"id": f"s{rank}", "device": f"g{rank}", "forward_ms": 2, "full_backward_ms": 4}
            | {"input_grad_ms": 2, "weight_grad_ms": 2, "activation_bytes": 1, "held_for_weight_grad_bytes": 1}
            for rank in range(4)
        ],
        "links": [{"between": ["a", "b"], "latency_ms": latency}],
    }
    found = compare_profile(profile_of(document), methods=("1f1b", "greedy-crosspipe"))
    row = row_of(found, "1f1b")
    assert makespan(row) == expected
    assert row.searched is not None
    assert row.searched.makespan_ns < expected * 1_000_000


@pytest.mark.parametrize(("cap", "loop", "wave"), [(4, 25, None), (3, 26, None), (2, None, 27)])
def test_placements_at_the_same_cap(cap: int, loop: int | None, wave: int | None) -> None:
    """Two devices, four stages, four microbatches: a loop takes 25 with 4 activations and 26 with 3, a V 27 with 2."""
    found = compare_profile(units([0, 1, 0, 1], 4, cap, held_for_weight_grad_bytes=0), methods=("auto",))
    if loop is not None:
        assert makespan(row_of(found, "auto", "profile")) == loop
    if wave is not None:
        assert makespan(row_of(found, "auto", "wave")) == wave


def test_nothing_fits_one_byte() -> None:
    """Two stages a device need two activations: with one byte no method has a plan, and all say so."""
    found = compare_profile(units([0, 1, 0, 1], 4, 1), methods=("auto", "gpipe", "zb-v"))
    assert found.comparison.front == ()
    assert set(found.plans) == {None}
    fitless = [row for row in found.comparison.rows if row.outcome == "does-not-fit"]
    assert {row.method for row in fitless} == {"auto", "gpipe", "zb-v"}
    assert all("short by" in row.reason for row in fitless)
    assert row_of(found, "auto").own is None


def test_equal_searches_nothing_and_own_knows_no_limit() -> None:
    """``equal`` leaves out searches at own peaks; ``own`` lets everything fit."""
    profile = units([0, 1, 2, 3], 8, 5)
    equal = compare_profile(profile, methods=("1f1b", "gpipe"), memory="equal")
    assert [row.searched for row in equal.comparison.rows] == [None] * len(equal.comparison.rows)
    own = compare_profile(profile, methods=("1f1b", "gpipe"), memory="own")
    assert own.comparison.capacities == (None,) * 4
    assert {row.outcome for row in own.comparison.rows} == {"fits"}


def test_less_memory_has_its_price() -> None:
    """Rows with less memory than the fastest keep to their share of the room, and none is faster."""
    profile = units([0, 1, 2, 3], 8, 8, held_for_weight_grad_bytes=1)
    found = compare_profile(profile, methods=("auto",), memory="equal")
    fastest = row_of(found, "auto")
    assert fastest.reached is not None
    leaner = [row for row in found.comparison.rows if row.memory_share is not None]
    assert {row.memory_share for row in leaner} <= {*SHARES}
    assert leaner
    for row in leaner:
        assert row.reached is not None
        assert row.reached.makespan_ns >= fastest.reached.makespan_ns
        caps = [1 + round((row.memory_share or 0) * (peak - 1)) for peak in fastest.reached.peaks]
        assert all(peak <= cap for peak, cap in zip(row.reached.peaks, caps, strict=True))


def test_exact_methods_on_small_jobs() -> None:
    """The MILP runs where a job is small, and says why it does not where it is not; it proves the same optimum."""
    found = compare_profile(units([0, 1], 4, 2), methods=("auto", "milp"), memory="equal")
    assert makespan(row_of(found, "milp")) == makespan(row_of(found, "auto"))
    large = compare_profile(units([0, 1], 40), methods=("milp",), memory="equal")
    assert large.comparison.rows[0].reason.startswith("is tried on jobs of up to 72 ops, got 240")


def test_same_every_time() -> None:
    """Searches are counted: the same call gives the same rows and plans."""
    profile = profile_of(profile_document(4, 6))
    assert compare_profile(profile, methods=QUICK) == compare_profile(profile, methods=QUICK)


def test_bidirectional_needs_an_even_number() -> None:
    """Chimera and DualPipe on three devices, or with an odd number of microbatches, are left out with the reason."""
    three = compare_profile(units([0, 1, 2], 4), methods=("chimera", "dualpipe"))
    assert all("even number of devices" in row.reason for row in three.comparison.rows)
    odd = compare_profile(units([0, 1], 3), methods=("chimera",))
    assert odd.comparison.rows[0].reason == "two flows need an even number of microbatches, got 3"


def test_fused_backwards_leave_split_schedules_out() -> None:
    """Where stages have only a full backward, schedules that split it say so; the others run."""
    profile = units([0, 1], 4, input_grad_ms=None, weight_grad_ms=None, full_backward_ms=2)
    found = compare_profile(profile, methods=("1f1b", "zb-h1"), memory="equal")
    assert row_of(found, "1f1b").outcome == "fits"
    assert "only full_backward_ms" in found.comparison.rows[-1].reason


def test_unlinked_profile_is_refused() -> None:
    """A profile whose own placement lacks a link is an error, not a row."""
    document = profile_document(2, 2)
    document["devices"] = [{"id": "g0", "site": "a"}, {"id": "g1", "site": "b"}]
    document["links"] = [{"between": ["a", "b"]}]
    unlinked = profile_of(document)
    with pytest.raises(ProfileError, match=r"no link joins site \"a\" and site \"b\""):
        compare_profile(replace(unlinked, links=()), methods=("1f1b",))


def test_all_methods_are_known() -> None:
    """By default all methods of `solve` are compared."""
    profile = units([0], 2)
    found = compare_profile(profile, memory="equal")
    assert {row.method for row in found.comparison.rows} == {*METHODS}


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8))
def test_front(points: list[tuple[int, int]]) -> None:
    """A point is on the front exactly when no other beats it; of equal ones the first is."""
    found = on_front(points)
    for index, point in enumerate(points):
        beaten = any(other != point and other[0] <= point[0] and other[1] <= point[1] for other in points)
        assert found[index] == (not beaten and points.index(point) == index)


def test_price_of_less_memory_is_honest() -> None:
    """Where the quickest search does poorly with little memory, a better one looks again, and the row names it."""
    profile = units([0, 1, 2, 3, 3, 2, 1, 0], 8, 8, held_for_weight_grad_bytes=0)
    found = compare_profile(profile, methods=("zb-v",), memory="equal")
    for row in found.comparison.rows:
        if row.memory_share is not None:
            assert row.reached is not None
            assert row.method == "greedy" or row.reached.gap <= 0.5
    check(found, profile)
