"""Warnings: numbers that look like a mistake, each with the figures that make it one."""

from __future__ import annotations

from typing import Any

import pytest
from sample_profiles import BASE, Edits, edited, encoded

from cpipe.errors import Diagnostic
from cpipe.profile import parse_profile, profile_warnings

STAGE = BASE["stages"][0]


def warnings_of(edits: Edits) -> tuple[Diagnostic, ...]:
    """Return the warnings of the edited base profile."""
    return profile_warnings(parse_profile(encoded(edited(edits)), "f.json"), "f.json")


def test_sound_profile_has_no_warnings() -> None:
    """The base profile gives nothing to look at again."""
    assert warnings_of({}) == ()


def scaled(factor: float) -> dict[str, Any]:
    """Return edits that multiply all durations of the base profile."""
    return {
        f"$.stages[{index}].{name}": value * factor
        for index, stage in enumerate(BASE["stages"])
        for name, value in stage.items()
        if name.endswith("_ms")
    } | {"$.links[0].latency_ms": 0}


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        # durations in seconds, in nanoseconds
        (
            scaled(1e-4),
            "$.stages: every forward takes under 0.001 ms, the longest 0.0003 ms: written in seconds? [duration-unit]",
        ),
        (
            scaled(1e6),
            "$.stages: every forward takes over 600000 ms, the shortest 2.5e+06 ms: "
            "written in ns or us? [duration-unit]",
        ),
        # memory in gigabytes
        (
            {"$.devices[1].memory_bytes": 80, "$.stages[1].static_bytes": 20_000_000_000},
            '$.devices[1].memory_bytes: memory of 80 bytes, but static_bytes of stage "s1" is 20000000000: '
            "written in MB or GB? [memory-unit]",
        ),
        # bandwidth in bytes a second
        (
            {"$.links[0].bandwidth_gbit_s": 12_500_000_000},
            "$.links[0].bandwidth_gbit_s: 1.25e+10 Gbit/s is over 100000 Gbit/s: "
            "written in Mbit/s or bytes/s? [bandwidth-unit]",
        ),
        (
            {"$.data_parallel.bandwidth_gbit_s": 200_000},
            "$.data_parallel.bandwidth_gbit_s: 200000 Gbit/s is over 100000 Gbit/s: "
            "written in Mbit/s or bytes/s? [bandwidth-unit]",
        ),
        # latency that contains waiting: 4 x F, more than F and D or F and B of either neighbour
        (
            {"$.links[0].latency_ms": 10},
            '$.links[0].latency_ms: latency of 10 ms, but stages "s0" and "s1" at its ends work at most 9 ms '
            "on a microbatch (F and D): was waiting measured too? [latency-looks-like-idle]",
        ),
        # forward latency far above the backward one
        (
            {
                "$.links[0]": {"from": "dc-a", "to": "dc-b", "latency_ms": 4.1},
                "$.links[1]": {"from": "dc-b", "to": "dc-a", "latency_ms": 1},
            },
            "$.links[0].latency_ms: latency of 4.1 ms forward, but 1 ms backward: "
            "was waiting measured too? [latency-uneven]",
        ),
        # what D leaves for W is not said
        (
            {"$.stages[0].held_for_weight_grad_bytes": ...},
            '$.stages[0]: 1 of 2 stages, first "s0", give activation_bytes but not held_for_weight_grad_bytes: '
            "0 bytes are taken as held between D and W [held-unset]",
        ),
        # one device does most of the work
        (
            {"$.stages[1].full_backward_ms": 33},
            '$.stages: device "g1" works 36 ms on a microbatch, the mean of 2 devices is 20.75 ms: '
            "balance 0.58, below 0.6 [uneven-work]",
        ),
        # measured collectives that never run
        (
            {"$.data_parallel": ..., "$.stages[1].all_reduce_ms": 1},
            "$.stages[1].all_reduce_ms: 1 of 2 stages give all_reduce_ms, but there is no data_parallel: "
            "not used [unused-times]",
        ),
        (
            {"$.data_parallel.replicas": 1, "$.stages[0].all_gather_ms": 1, "$.stages[1].all_gather_ms": 1},
            "$.stages[0].all_gather_ms: 2 of 2 stages give all_gather_ms, but there is one replica: "
            "not used [unused-times]",
        ),
    ],
)
def test_suspicious_numbers_are_pointed_out(edits: Edits, expected: str) -> None:
    """A suspicion is one warning at its place, with the numbers it rests on; the profile still loads."""
    assert [str(warning) for warning in warnings_of(edits)] == [f"warning: f.json: {expected}"]


@pytest.mark.parametrize(
    "edits",
    [
        {"$.links[0].latency_ms": 9},  # as long as F and B of a neighbour, not longer
        {"$.stages[0].input_grad_ms": ..., "$.stages[0].weight_grad_ms": ..., "$.stages[0].full_backward_ms": 5}
        | {"$.stages[0].held_for_weight_grad_bytes": ...},  # no split, so nothing is held
        {"$.stages[0].held_for_weight_grad_bytes": 0},  # said to be nothing
        {"$.devices[0].memory_bytes": 100},  # small, and enough for what stands there
        {"$.links[0].bandwidth_gbit_s": 100_000},
        {  # four times the latency of the way back, not more
            "$.links[0]": {"from": "dc-a", "to": "dc-b", "latency_ms": 4},
            "$.links[1]": {"from": "dc-b", "to": "dc-a", "latency_ms": 1},
        },
        {"$.stages[0].forward_ms": 0, "$.stages[1].forward_ms": 0, "$.links[0].latency_ms": 0},  # no forward at all
        {"$.data_parallel.mode": "ddp", "$.stages[0].all_gather_ms": 1},  # measured for the other mode
        {"$.stages[1].full_backward_ms": 24},  # balance 16.25 / 27 = 0.602
        {"$.stages[0].device": "g1", "$.devices[0]": {"id": "g1", "site": "dc-a"}, "$.devices[1]": ...}
        | {"$.stages[1].device": "g1", "$.links": []},  # one device is never uneven
    ],
)
def test_plausible_numbers_are_not(edits: Edits) -> None:
    """What lies on the right side of a limit gives no warning."""
    assert warnings_of(edits) == ()


def test_latency_is_pointed_out_once_a_link() -> None:
    """A link that many boundaries cross is suspected once."""
    stages = [{**STAGE, "id": f"s{index}", "device": f"g{index % 2}"} for index in range(6)]
    codes = [warning.code for warning in warnings_of({"$.stages": stages, "$.links[0].latency_ms": 100})]
    assert codes == ["latency-looks-like-idle"]


def test_warnings_are_warnings() -> None:
    """A warning carries its severity, the file and, where there is one, what to do."""
    (warning,) = warnings_of(scaled(1e-4))
    assert (warning.severity, warning.file, warning.hint) == ("warning", "f.json", "durations are milliseconds")
