"""Tests of cpipe.study.sweep.vary: the profile of a point, and what a profile must have to be varied."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sweep_cases import two_sites, two_sites_document

from cpipe.errors import CpipeError, ProfileError, UsageError
from cpipe.profile import Profile, normalize, parse_profile
from cpipe.study.sweep import Axes, Point, Settings, make_sweep, point_profile
from cpipe.study.sweep.vary import chosen_links, forward_ms, largest_message

MS = 1_000_000


def varied(profile: Profile, settings: Settings | None = None, **point: Any) -> Profile:
    """Return the profile of a point whose first link varies."""
    settings = settings or Settings()
    return point_profile(profile, Point(**({"microbatches": 4} | point)), replace(settings, links=(0,)))


def hop_of(profile: Profile) -> tuple[int, int]:
    """Return latency and occupancy of the first hop [ns]."""
    hop = normalize(profile).forward_hops[0]
    assert hop is not None
    return hop.latency_ns, hop.occupancy_ns


@pytest.mark.parametrize(
    ("unit", "value", "latency_ns"), [("ms", 2.5, 2_500_000), ("factor", 3.0, 3 * MS), ("tf", 0.5, MS), ("tf", 0.0, 0)]
)
def test_latency(unit: Any, value: float, latency_ns: int) -> None:
    """A latency is absolute, times the profile's 1 ms, or in forwards of 2 ms; the bandwidth stays."""
    assert hop_of(varied(two_sites(), Settings(latency_unit=unit), latency=value)) == (latency_ns, MS)


@pytest.mark.parametrize(
    ("unit", "value", "occupancy_ns"),
    [("gbit_s", 16.0, MS // 2), ("factor", 4.0, MS // 4), ("tf", 1.5, 3 * MS), ("tf", 0.0, 0)],
)
def test_bandwidth(unit: Any, value: float, occupancy_ns: int) -> None:
    """A bandwidth is absolute, times the profile's 8 Gbit/s, or such that a message holds the link that long."""
    assert hop_of(varied(two_sites(), Settings(bandwidth_unit=unit), bandwidth=value)) == (MS, occupancy_ns)


@given(st.fractions(0, 8, max_denominator=64), st.integers(1, 10**9))
def test_relative_bandwidth_is_exact(share: Fraction, size: int) -> None:
    """Whatever the size of the largest message, it holds the link for the share of T_F to a nanosecond."""
    document = two_sites_document()
    for stage in document["stages"]:
        stage["output_bytes"] = size
    for device in document["devices"]:
        device["memory_bytes"] = 10**13
    profile = parse_profile(json.dumps(document).encode(), "x")
    _, occupancy = hop_of(varied(profile, Settings(bandwidth_unit="tf"), bandwidth=float(share)))
    assert abs(occupancy - share * 2 * MS) <= 1


def test_forward_time_is_that_of_a_device() -> None:
    """T_F adds up the stages of a device, and is the largest of all devices (CrossPipe, section 2.3)."""
    document = two_sites_document()
    extra = dict(document["stages"][1], id="s2", forward_ms=5.5)
    profile = parse_profile(json.dumps(document | {"stages": [*document["stages"], extra]}).encode(), "x")
    assert forward_ms(profile) == Fraction("7.5")
    assert largest_message(profile) == 1_000_000


def test_memory_and_microbatches() -> None:
    """Capacities are multiplied, rounded down; devices without a limit stay without one."""
    document = two_sites_document()
    document["devices"][0]["memory_bytes"] = 30_000_000_001
    del document["devices"][1]["memory_bytes"]
    profile = varied(parse_profile(json.dumps(document).encode(), "x"), microbatches=9, memory_factor=1.5)
    assert [device.memory_bytes for device in profile.devices] == [45_000_000_001, None]
    assert profile.microbatches == 9


def test_other_links_stay() -> None:
    """Only the links that vary are changed."""
    document = two_sites_document()
    document["links"].append({"from": "g0", "to": "g1", "latency_ms": 7})
    profile = varied(parse_profile(json.dumps(document).encode(), "x"), latency=3.0)
    assert [link.latency_ms for link in profile.links] == [3.0, 7.0]


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_cut_stages_add_up(chunks: int) -> None:
    """Stages are cut into equal ones: times to a nanosecond, bytes exactly; what is sent stays as large."""
    profile = two_sites()
    cut = varied(profile, chunks=chunks, placement="loop")
    assert len(cut.stages) == 2 * chunks
    for index, stage in enumerate(profile.stages):
        parts = cut.stages[index * chunks : (index + 1) * chunks]
        for name in ("activation_bytes", "held_for_weight_grad_bytes", "static_bytes"):
            assert sum(getattr(part, name) for part in parts) == getattr(stage, name)
        for name in ("forward_ms", "input_grad_ms", "weight_grad_ms", "full_backward_ms"):
            assert sum(getattr(part, name) for part in parts) == pytest.approx(getattr(stage, name), abs=1e-6)
        assert {part.output_bytes for part in parts} == {stage.output_bytes}
    assert len({stage.id for stage in cut.stages}) == len(cut.stages)


def test_parts_of_the_last_stage_send_what_it_receives() -> None:
    """Where the last stage sends nothing, its parts still hand each other activations."""
    document = two_sites_document()
    del document["stages"][1]["output_bytes"]
    cut = varied(parse_profile(json.dumps(document).encode(), "x"), chunks=2, placement="wave")
    assert [stage.output_bytes for stage in cut.stages] == [1_000_000, 1_000_000, 1_000_000, 0]


def test_chunks_that_do_not_fit() -> None:
    """Stages are only ever cut, never joined."""
    extra = [dict(two_sites_document()["stages"][1], id=f"x{index}") for index in range(2)]
    document = two_sites_document(stages=[*two_sites_document()["stages"], *extra])
    profile = parse_profile(json.dumps(document).encode(), "x")
    with pytest.raises(UsageError, match="3 chunks on 2 devices are no multiple of the profile's 4 stages") as caught:
        varied(profile, chunks=3)
    assert caught.value.diagnostics[0].code == "sweep-chunks"


def test_values_out_of_the_format() -> None:
    """A point whose profile nobody could write in a file is refused by the rule that it breaks."""
    with pytest.raises(ProfileError, match=r"\$\.microbatches"):
        varied(two_sites(), microbatches=10**6)


SITES = [["a", "b"], ["b", "c"]]


def chain() -> Profile:
    """Return four devices, two of them in site b; links of sites, inside a site, and of two devices."""
    document = two_sites_document()
    sites = ("a", "b", "b", "c")
    document["devices"] = [{"id": f"g{index}", "site": site} for index, site in enumerate(sites)]
    document["stages"] = [dict(document["stages"][0], id=f"s{index}", device=f"g{index}") for index in range(4)]
    document["links"] = [
        {"between": ["a", "b"], "latency_ms": 1},
        {"between": ["b", "b"], "latency_ms": 1},
        {"from": "b", "to": "c", "latency_ms": 1},
        {"from": "c", "to": "b", "latency_ms": 1},
        {"between": ["g1", "g2"], "latency_ms": 1},
        {"from": "g2", "to": "g3", "latency_ms": 1},
    ]
    return parse_profile(json.dumps(document).encode(), "x")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("between-sites", (0, 2, 3, 5)),
        ("all", (0, 1, 2, 3, 4, 5)),
        ("a<->b", (0,)),
        ("b<->a", (0,)),
        ("c->b, a<->b", (0, 3)),
        ("g2<->g1", (4,)),
    ],
)
def test_choice_of_links(choice: str, expected: tuple[int, ...]) -> None:
    """Links vary between sites, all of them, or by their ends; links of devices count where those stand."""
    assert chosen_links(chain(), choice) == expected


def without(*fields: str) -> Callable[[dict[str, Any]], None]:
    """Return a change that takes fields out of devices and stages."""

    def change(document: dict[str, Any]) -> None:
        for entry in (*document["devices"], *document["stages"]):
            for name in fields:
                entry.pop(name, None)

    return change


def without_forward(document: dict[str, Any]) -> None:
    """Set every forward to 0."""
    for stage in document["stages"]:
        stage["forward_ms"] = 0


def in_one_site(document: dict[str, Any]) -> None:
    """Put both devices in one site, their link with them."""
    for device in document["devices"]:
        device["site"] = "east"
    document["links"] = [{"between": ["east", "east"], "latency_ms": 1}]


def with_free_link(document: dict[str, Any]) -> None:
    """Join both sites by a link that costs nothing."""
    document["links"] = [{"between": ["east", "west"]}]


def without_links(document: dict[str, Any]) -> None:
    """Put both devices in one site without any link."""
    in_one_site(document)
    document["links"] = []


@pytest.mark.parametrize(
    ("change", "axes", "settings", "links", "message"),
    [
        (
            in_one_site,
            {"latencies": (1.0,)},
            {},
            "between-sites",
            "--links between-sites: the profile has no link between two sites [sweep-no-links]",
        ),
        (
            without_links,
            {"latencies": (1.0,)},
            {},
            "all",
            "--links all: the profile has no link at all [sweep-no-links]",
        ),
        (
            without(),
            {"latencies": (1.0,)},
            {},
            "east->west",
            "--links: the profile has no link 'east->west'; it has east<->west; or say between-sites or all "
            "[sweep-links]",
        ),
        (
            without("output_bytes"),
            {"bandwidths": (1.0,)},
            {},
            "all",
            "bandwidth has no effect: the profile has no output_bytes [sweep-no-messages]",
        ),
        (
            without_forward,
            {"latencies": (1.0,)},
            {"latency_unit": "tf"},
            "all",
            "delays in forward times: every forward_ms of the profile is 0 [sweep-no-forward]",
        ),
        (
            with_free_link,
            {"latencies": (2.0,)},
            {"latency_unit": "factor"},
            "all",
            "--latency-factor has no effect: the latency of these links is 0 [sweep-no-latency]",
        ),
        (
            with_free_link,
            {"bandwidths": (2.0,)},
            {"bandwidth_unit": "factor"},
            "all",
            "--bandwidth-factor has no effect: the bandwidth of these links is infinite [sweep-no-bandwidth]",
        ),
        (
            without("memory_bytes"),
            {"memory_factors": (1.0, 2.0)},
            {},
            "all",
            "--memory-factor has no effect: no device has memory_bytes [sweep-no-memory]",
        ),
    ],
)
def test_profiles_that_cannot_be_varied(
    change: Callable[[dict[str, Any]], None],
    axes: dict[str, Any],
    settings: dict[str, Any],
    links: str,
    message: str,
) -> None:
    """What an axis varies must be there: links, messages, forwards, memory limits."""
    document = two_sites_document()
    change(document)
    profile = parse_profile(json.dumps(document).encode(), "x")
    with pytest.raises(CpipeError, match=r"\[sweep-") as caught:
        make_sweep(profile, Axes(microbatches=(4,), **axes), Settings(**settings), links)
    assert str(caught.value) == f"error: {message}"
