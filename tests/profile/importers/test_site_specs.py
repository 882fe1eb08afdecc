"""Tests of cpipe.profile.importers.site_specs: devices and links as options have them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpipe.errors import UsageError
from cpipe.profile import DeviceSpec, LinkSpec
from cpipe.profile.importers import parse_cost, parse_devices, parse_links


@pytest.mark.parametrize(
    ("text", "sites"),
    [
        ("3", [None] * 3),
        ("dc-a:2,dc-b:1", ["dc-a", "dc-a", "dc-b"]),
        (" a:1 , b:1 ", ["a", "b"]),
        ("a:1,b:1,a:1", ["a", "b", "a"]),
        ("rack:7:2", ["rack:7", "rack:7"]),
    ],
)
def test_devices(text: str, sites: list[str | None]) -> None:
    """A number, or numbers of sites, are devices g0, g1, ... in rank order; a site's name may hold a colon."""
    devices = parse_devices(text, 5)
    assert [device.id for device in devices] == [f"g{index}" for index in range(len(sites))]
    assert [device.site for device in devices] == sites
    assert {device.memory_bytes for device in devices} == {5}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad-devices"),
        ("0", "bad-devices"),
        ("-1", "bad-devices"),
        ("four", "bad-devices"),
        ("2.5", "bad-devices"),
        ("a:", "bad-devices"),
        (":3", "bad-devices"),
        ("a:0", "bad-devices"),
        ("a:1,", "bad-devices"),
        ("4,4", "bad-devices"),
        ("a:\u0663", "bad-devices"),
        ("70000", "too-large"),
        ("a:65536,b:1", "too-large"),
    ],
)
def test_wrong_devices(text: str, code: str) -> None:
    """What is no number of devices is refused, never taken for 0 or for a site."""
    with pytest.raises(UsageError, match=rf"--devices: expected .*\[{code}\]"):
        parse_devices(text)


def test_all_wrong_devices_at_once() -> None:
    """Every part that is wrong is told."""
    with pytest.raises(UsageError, match="bad-devices") as caught:
        parse_devices("a:x,b:2,c:y")
    assert len(caught.value.diagnostics) == 2


@pytest.mark.parametrize(
    ("text", "cost"), [("5:100", (5.0, 100.0)), ("0:0.5", (0.0, 0.5)), ("1.5e1:4E2", (15.0, 400.0))]
)
def test_costs(text: str, cost: tuple[float, float]) -> None:
    """A cost is latency [ms] and bandwidth [Gbit/s]."""
    assert parse_cost(text, "--intra-link") == cost


@pytest.mark.parametrize(
    "text", ["", "5", "5:", ":5", "5:0", "-1:5", "5:-1", "nan:5", "5:inf", "a:b", "1:2:3", "1e13:1"]
)
def test_wrong_costs(text: str) -> None:
    """Anything else is no cost, and the option is named."""
    with pytest.raises(UsageError, match=r"--dp-link: expected LATENCY_MS:GBIT_S.*\[bad-link\]"):
        parse_cost(text, "--dp-link")


def test_links() -> None:
    """Links join two sites or two devices; those inside a site come after them, one a site."""
    devices = parse_devices("a:2,b:2")
    found = parse_links(["a,b:5:100", "g0,g1:0:900"], "0.01:400", devices)
    assert found == (
        LinkSpec(between=("a", "b"), latency_ms=5.0, bandwidth_gbit_s=100.0),
        LinkSpec(between=("g0", "g1"), latency_ms=0.0, bandwidth_gbit_s=900.0),
        LinkSpec(between=("a", "a"), latency_ms=0.01, bandwidth_gbit_s=400.0),
        LinkSpec(between=("b", "b"), latency_ms=0.01, bandwidth_gbit_s=400.0),
    )


def test_names_with_colons() -> None:
    """The last two colons end the names, whatever stands before."""
    devices = (DeviceSpec(id="g0", site="r:1"), DeviceSpec(id="g1", site="r:2"))
    (link,) = parse_links(["r:1,r:2:5:100"], None, devices)
    assert link.between == ("r:1", "r:2")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a,b", "bad-link"),
        ("a,b:5", "bad-link"),
        ("ab:5:100", "bad-link"),
        ("a,b:5:x", "bad-link"),
        ("a,c:5:100", "unknown-link-end"),
        (",b:5:100", "unknown-link-end"),
    ],
)
def test_wrong_links(text: str, code: str) -> None:
    """A link that is none, or joins what there is not, is refused by name."""
    with pytest.raises(UsageError, match=rf"--link: .*\[{code}\]"):
        parse_links([text], None, parse_devices("a:1,b:1"))


def test_all_wrong_links_at_once() -> None:
    """Every link that is wrong is told."""
    with pytest.raises(UsageError, match="bad-link") as caught:
        parse_links(["a,b", "a,b:5:0", "a,c:1:1", "a,b:1:1"], None, parse_devices("a:1,b:1"))
    assert [fault.code for fault in caught.value.diagnostics] == ["bad-link", "bad-link", "unknown-link-end"]


@given(st.integers(1, 1000), st.floats(0.001, 1e6))
def test_shared_links(share: int, bandwidth: float) -> None:
    """Of a link that pipelines share, each has its even part; inside a site nobody shares."""
    devices = parse_devices("a:1,b:1")
    link, *inside = parse_links([f"a,b:5:{bandwidth:.6f}"], "0:8", devices, share)
    assert link.bandwidth_gbit_s == pytest.approx(round(bandwidth, 6) / share, abs=1e-8)
    assert {one.bandwidth_gbit_s for one in inside} == {8.0}
