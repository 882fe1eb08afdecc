"""Placements from one profile: in line with adjacent stages together, loop, wave, the best of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers import assert_plan_ok

from cpipe.compiler import SolveOptions, compile_profile
from cpipe.errors import InfeasibleError, NoSolutionError, UsageError
from cpipe.profile import Profile, parse_profile


def profile_of(costs: list[float], num_devices: int, microbatches: int = 4, **changes: Any) -> Profile:
    """Return stages of the given forward times [ms], all on the first device, D and W as long as F."""
    stages = [
        {"id": f"s{index}", "device": "g0", "forward_ms": cost, "input_grad_ms": cost, "weight_grad_ms": cost}
        for index, cost in enumerate(costs)
    ]
    for name in ("activation_bytes", "static_bytes"):
        for stage, size in zip(stages, changes.pop(name, [0] * len(costs)), strict=True):
            stage[name] = size
    devices = [{"id": f"g{index}"} | changes.get("device", {}) for index in range(num_devices)]
    document = {
        "format": "cpipe.profile",
        "version": 1,
        "microbatches": microbatches,
        "devices": devices,
        "stages": stages,
    }
    return parse_profile(json.dumps(document).encode(), "profile.json")


@pytest.mark.parametrize(
    ("costs", "num_devices", "placement"),
    [
        ([1, 1, 1, 1, 1], 4, (0, 1, 2, 3, 3)),
        ([3, 1, 1, 1], 2, (0, 1, 1, 1)),
        ([1, 1, 1, 3], 2, (0, 0, 0, 1)),
        ([0.5, 0.5, 2, 2], 3, (0, 0, 1, 2)),
        ([2, 2], 2, (0, 1)),
    ],
)
def test_in_line_adjacent_stages_share_a_device(
    costs: list[float], num_devices: int, placement: tuple[int, ...]
) -> None:
    """Runs as even as they can be, none empty; the hand-over inside a device is no message."""
    compiled = compile_profile(profile_of(costs, num_devices), SolveOptions(placement="ud", method="1f1b"))
    assert compiled.plan.problem.placement == placement
    pairs = {(channel.source, channel.target) for channel in compiled.plan.channels}
    assert all(abs(source - target) == 1 for source, target in pairs)
    assert_plan_ok(compiled.plan, compiled.problem)


def test_a_whole_backward_counts_as_it_is() -> None:
    """Where full_backward_ms is less than D and W, it is what the loads are made of."""
    profile = profile_of([1, 1, 1], 2)
    document = json.loads(json.dumps({"format": "cpipe.profile", "version": 1, "microbatches": 2}))
    document["devices"] = [{"id": "g0"}, {"id": "g1"}]
    document["stages"] = [
        {"id": f"s{index}", "device": "g0", "forward_ms": 1, "full_backward_ms": whole}
        for index, whole in enumerate((5, 1, 1))
    ]
    uneven = parse_profile(json.dumps(document).encode(), "profile.json")
    options = SolveOptions(placement="ud", method="gpipe")
    assert compile_profile(uneven, options).plan.problem.placement == (0, 1, 1)
    assert compile_profile(profile, options).plan.problem.placement == (0, 1, 1)
    document["stages"][0]["full_backward_ms"], document["stages"][2]["full_backward_ms"] = 1, 5
    uneven = parse_profile(json.dumps(document).encode(), "profile.json")
    assert compile_profile(uneven, options).plan.problem.placement == (0, 0, 1)


@pytest.mark.parametrize(
    ("capacity", "refused"),
    [(18, {"wave": 'device "g0"'}), (22, {})],
)
def test_what_does_not_fit_is_left_out_by_name(capacity: int, refused: dict[str, str]) -> None:
    """Static memory [10, 2, 2, 10]: a V puts both tens on the first device, which holds 18 bytes or 22."""
    profile = profile_of(
        [1, 1, 1, 1],
        2,
        activation_bytes=[1] * 4,
        static_bytes=[10, 2, 2, 10],
        device={"memory_bytes": capacity},
    )
    compiled = compile_profile(profile, SolveOptions(placement="auto", max_gap=0.5))
    assert_plan_ok(compiled.plan, compiled.problem)
    left_out = {
        str(warning).split("placement ")[1].split()[0]: str(warning)
        for warning in compiled.result.warnings
        if warning.code == "placement-refused"
    }
    assert {name: True for name in refused} == {name: True for name in left_out if name != "profile"}
    for name, device in refused.items():
        assert device in left_out[name]
        with pytest.raises(InfeasibleError, match="g0"):
            compile_profile(profile, SolveOptions(placement=name))


def test_auto_keeps_the_best_of_all_patterns() -> None:
    """From one profile with two stages a device: the line, the loop and the wave, each as if asked for by name."""
    profile = profile_of([1, 1, 1, 1], 2, microbatches=6)
    options = {name: SolveOptions(placement=name, method="greedy") for name in ("ud", "loop", "wave", "auto")}
    makespans = {name: compile_profile(profile, each).result.makespan_ns for name, each in options.items()}
    assert makespans["auto"] == min(makespans.values())
    assert makespans["ud"] > makespans["wave"]


@pytest.mark.parametrize(
    ("method", "placement", "hint"),
    [
        ("zb-v", "ud", r"\(--placement wave\), got the placement \[0, 0, 1, 1\]"),
        ("hanayo", "loop", r"\(--placement wave\), got the placement \[0, 1, 0, 1\]"),
        ("interleaved-1f1b", "wave", r"\(--placement loop\), got the placement \[0, 1, 1, 0\]"),
        ("zb-h2", "loop", r"\(--placement ud\), got the placement \[0, 1, 0, 1\]"),
    ],
)
def test_a_schedule_on_the_wrong_placement_says_which_it_needs(method: str, placement: str, hint: str) -> None:
    """The refusal of a schedule asked for by name says which option makes it possible, and it does."""
    profile = profile_of([1, 1, 1, 1], 2)
    with pytest.raises(UsageError, match=hint) as caught:
        compile_profile(profile, SolveOptions(method=method, placement=placement))
    assert caught.value.diagnostics[0].code == "schedule-does-not-apply"
    wanted = hint.split("--placement ")[1].split("\\")[0]
    compiled = compile_profile(profile, SolveOptions(method=method, placement=wanted))
    assert compiled.result.found_by == method
    assert_plan_ok(compiled.plan, compiled.problem)


@pytest.mark.parametrize("method", ["zb-v", "v-half", "v-min", "dualpipe-v", "interleaved-zb"])
def test_auto_finds_the_placement_of_a_schedule(method: str) -> None:
    """With --placement auto a schedule asked for by name gets the pattern that it needs."""
    compiled = compile_profile(profile_of([1, 1, 1, 1], 2), SolveOptions(method=method, placement="auto"))
    assert compiled.placement == ("loop" if method == "interleaved-zb" else "wave")
    assert_plan_ok(compiled.plan, compiled.problem)


def test_a_schedule_that_needs_more_memory_than_there_is_says_so() -> None:
    """V-Min fits where ZB-V does not: the refusal names the device and what it is short of."""
    profile = profile_of([1] * 8, 4, microbatches=8, activation_bytes=[10] * 8, device={"memory_bytes": 45})
    compiled = compile_profile(profile, SolveOptions(method="v-min", placement="wave"))
    assert max(compiled.plan.claims.peak_bytes) == 40
    with pytest.raises(NoSolutionError, match="zb-v does not fit in memory: device"):
        compile_profile(profile, SolveOptions(method="zb-v", placement="wave"))


def test_a_group_size_is_recorded_and_checked() -> None:
    """A group size shapes interleaved 1F1B and stands in the plan's limits; elsewhere or out of range it is refused."""
    profile = profile_of([1, 1, 1, 1], 2, microbatches=8)
    deep, wide = (
        compile_profile(profile, SolveOptions(method="interleaved-1f1b", placement="loop", group_size=size))
        for size in (2, 8)
    )
    assert deep.plan.made_by.limits == {"placement": "loop", "group_size": 2}
    assert deep.result.makespan_ns == wide.result.makespan_ns
    assert deep.result.schedule != wide.result.schedule
    for compiled in (deep, wide):
        assert_plan_ok(compiled.plan, compiled.problem)
    for method, placement, code, message in (
        ("interleaved-1f1b", "loop", "schedule-does-not-apply", "needs a group size from 2 to 8"),
        ("1f1b", "ud", "schedule-does-not-apply", "1f1b has no groups"),
        ("auto", "ud", "group-size", "auto chooses its order itself: a group size is for interleaved-1f1b"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            compile_profile(profile, SolveOptions(method=method, placement=placement, group_size=9))
        assert caught.value.diagnostics[0].code == code
