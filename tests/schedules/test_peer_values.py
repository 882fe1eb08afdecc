"""Every schedule against the best order of its name that other generators give, on the peers' profiles.

Makespans in thousandths of the profile's unit; peaks in activations of a whole device, held until W. Fused pairs are
taken apart here, as the peers' orders were.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import pytest
from known_cases import PEERS, PeerProfile
from shapes import peer, peer_of_shape, peer_of_two_flows, unit_result

from cpipe.ir import Schedule
from cpipe.schedules import static_schedule
from cpipe.sim import memory_peaks


class Row(NamedTuple):
    """The best that is known of a schedule on P1 to P6: makespan and peak, or None where nobody has it."""

    name: str
    shape: str
    chunks: int
    values: tuple[tuple[int, Fraction], ...]


def row(name: str, shape: str, makespans: tuple[float, ...], peaks: tuple[float, ...]) -> Row:
    """Return a row of makespans in the profiles' unit."""
    values = tuple((round(1000 * makespan), Fraction(peak)) for makespan, peak in zip(makespans, peaks, strict=True))
    return Row(name, shape, 1 if shape == "line" else 2, values)


ROWS = (
    row("gpipe", "line", (33, 336, 1431.3, 37, 240, 99.72), (8, 8, 24, 8, 64, 16)),
    row("1f1b", "line", (33, 346, 1455.3, 49, 251.8, 99.72), (4, 4, 8, 4, 16, 4)),
    row("zb-h1", "line", (27, 282, 1309.5, 41, 213, 93.3), (4, 4, 8, 4, 16, 4)),
    row("zb-h2", "line", (27, 273, 1235.4, 29, 208.5, 93.3), (8, 8, 16, 8, 32, 8)),
    row("interleaved-1f1b", "loop", (28.5, 299, 1280.25, 47, 220.7, 94.96), (5.5, 5.5, 11.5, 5.5, 23.5, 5.5)),
    row("interleaved-zb", "loop", (25.5, 271, 1218.75, 53.5, 207.1, 91.6), (4, 4, 8, 4, 16, 4)),
    row("looped-bfs", "loop", (28.5, 291, 1270.65, 34.5, 217.5, 94.96), (8, 8, 24, 8, 64, 16)),
    row("zb-v", "wave", (25.5, 268, 1187.35, 41, 206.8, 91.6), (4, 4, 8, 4, 16, 4)),
    row("v-half", "wave", (26.5, 287, 1327.65, 55.5, 222.7, 93), (3, 3, 5, 3, 9, 3)),
    row("v-min", "wave", (29.5, 335, 1657.35, 65.5, 262.7, 96.4), (2, 2, 4, 2, 6, 2)),
    row("hanayo", "wave", (32.5, 351, 1490.4, 57.5, 288.5, 100.6), (4, 4, 8, 4, 16, 4)),
    row("dualpipe-v", "wave", (25.5, 268, 1213.95, 43.5, 208, 91.6), (4.5, 4.5, 8.5, 4.5, 16.5, 4.5)),
)

CELLS = [(entry, profile, value) for entry in ROWS for profile, value in zip(PEERS, entry.values, strict=True)]


@pytest.mark.parametrize(
    ("entry", "profile", "value"), CELLS, ids=[f"{entry.name}-{profile.name}" for entry, profile, _ in CELLS]
)
def test_no_order_of_the_same_name_is_better(entry: Row, profile: PeerProfile, value: tuple[int, Fraction]) -> None:
    """No generator's order of that name takes less at that peak."""
    problem = peer_of_shape(profile, entry.shape, entry.chunks)
    makespan, peak = unit_result(problem, Schedule(orders=static_schedule(entry.name, problem).orders))
    assert makespan <= value[0]
    assert peak <= value[1]


@pytest.mark.parametrize(
    ("name", "profile", "makespan"),
    [
        ("zb-v", "P2", 264_000),  # the best known of any order with this memory
        ("zb-v", "P4", 35_500),  # the optimum with this memory
        ("zb-v", "P5", 205_000),  # below the best of the peers, 206.8
        ("v-half", "P2", 283_000),
        ("v-half", "P3", 1_324_000),
        ("v-half", "P4", 40_500),
        ("v-half", "P5", 221_900),
        ("v-min", "P4", 49_500),
        ("zb-h2", "P3", 1_235_300),  # the optimum
        ("interleaved-zb", "P4", 39_500),
    ],
)
def test_times_make_better_orders(name: str, profile: str, makespan: int) -> None:
    """Schedules that look at the times beat the peers' where messages take time: what they reach is pinned."""
    problem = peer_of_shape(
        peer(profile), "line" if name == "zb-h2" else "loop" if "inter" in name else "wave", 1 if name == "zb-h2" else 2
    )
    assert unit_result(problem, static_schedule(name, problem))[0] == makespan


ODD: dict[str, tuple[str, dict[int, tuple[float, float]]]] = {
    "zb-h2": ("line", {10: (33, 8), 3: (13, 3)}),
    "interleaved-1f1b": ("loop", {10: (34.5, 6), 3: (15, 3)}),
    "interleaved-zb": ("loop", {10: (31.5, 4.5), 3: (11.5, 3)}),
    "looped-bfs": ("loop", {10: (34.5, 10), 3: (15, 3)}),
    "zb-v": ("wave", {10: (31.5, 4), 3: (11.5, 3)}),
    "v-half": ("wave", {10: (32.5, 3), 3: (13.5, 3)}),
    "v-min": ("wave", {10: (35.5, 2), 3: (14.5, 2)}),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("n", [10, 3])
def test_odd_numbers_of_microbatches(name: str, n: int) -> None:
    """Four devices in unit times with ten and with three microbatches, where many generators give up."""
    shape, values = ODD[name]
    makespan, peak = values[n]
    problem = peer_of_shape(peer("P1")._replace(n=n), shape, 1 if shape == "line" else 2)
    found = unit_result(problem, static_schedule(name, problem))
    assert found[0] <= 1000 * makespan
    assert found[1] <= Fraction(peak)


TWO_FLOWS: dict[str, dict[str, tuple[float, int]]] = {
    "dualpipe": {"P1": (25, 5), "P2": (257, 5), "P3": (1193.7, 9), "P4": (35, 5), "P5": (202.7, 17), "P6": (68.82, 5)},
    "chimera": {"P1": (30, 4), "P2": (311, 4), "P4": (43, 4), "P6": (77.18, 4)},
}


@pytest.mark.parametrize(("name", "profile"), [(name, each) for name, row in TWO_FLOWS.items() for each in row])
def test_two_flows_are_as_good(name: str, profile: str) -> None:
    """With two copies of the weights, too, no order of that name takes less at that peak."""
    makespan, peak = TWO_FLOWS[name][profile]
    problem = peer_of_two_flows(peer(profile))
    orders = static_schedule(name, problem).orders
    found = unit_result(problem, Schedule(orders=orders))
    assert found[0] <= round(1000 * makespan)
    assert max(memory_peaks(problem, orders)) <= peak
