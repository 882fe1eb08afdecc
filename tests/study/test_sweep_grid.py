"""Tests of cpipe.study.sweep.grid: which points there are, in which order, and their keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sweep_cases import small_sweep, two_sites

import cpipe
from cpipe.errors import UsageError
from cpipe.profile import encode_profile, parse_profile
from cpipe.study.sweep import Axes, Entry, Point, Settings, grid_points
from cpipe.study.sweep.grid import MAX_POINTS, point_key, profile_digest

NAMES = st.lists(st.sampled_from(("auto", "1f1b", "greedy")), min_size=1, max_size=3, unique=True)
REALS = st.lists(st.sampled_from((0.0, 0.25, 0.5, 1.0, 2.0)), max_size=3, unique=True).map(tuple)


def test_order() -> None:
    """The bandwidth varies fastest, then the latency, then method and placement, memory, and microbatches."""
    axes = Axes(
        microbatches=(8, 4),
        memory_factors=(1.0, 2.0),
        methods=(Entry(method="auto"), Entry(method="zb-v", placement="wave")),
        placements=("ud", "loop"),
        chunks=(2, 3),
        latencies=(0.0, 1.0),
        bandwidths=(0.5,),
    )
    points = grid_points(axes)
    panels = [
        ("auto", "ud", None),
        *[("auto", "loop", 2), ("auto", "loop", 3)],
        *[("zb-v", "wave", 2)],
        ("zb-v", "wave", 3),
    ]
    expected = [
        Point(
            microbatches=microbatches,
            memory_factor=factor,
            method=method,
            placement=placement,
            chunks=chunks,
            latency=latency,
            bandwidth=0.5,
        )
        for microbatches in (8, 4)
        for factor in (1.0, 2.0)
        for method, placement, chunks in panels
        for latency in (0.0, 1.0)
    ]
    assert list(points) == expected


def test_axis_without_values_is_the_profiles() -> None:
    """Latency, bandwidth and chunks that no option gives are left as the profile has them."""
    assert grid_points(Axes(microbatches=(4,))) == (Point(microbatches=4),)


def test_a_combination_is_tried_once() -> None:
    """A method that names a placement which it would be tried on anyway is one panel, not two."""
    entries = (Entry(method="auto"), Entry(method="auto", placement="ud"))
    assert len(grid_points(Axes(microbatches=(4,), methods=entries, placements=("ud", "loop")))) == 2


def test_too_large() -> None:
    """A grid beyond the limit is refused before anything is made of it."""
    values = tuple(float(value) for value in range(400))
    with pytest.raises(UsageError, match=rf"the grid has 160000 points, more than the {MAX_POINTS} allowed") as caught:
        grid_points(Axes(microbatches=(1,), latencies=values, bandwidths=values))
    assert caught.value.diagnostics[0].code == "sweep-too-large"


@given(NAMES, st.sampled_from((("ud",), ("ud", "loop"), ("wave", "loop"))), REALS, REALS)
def test_every_combination_once(
    methods: list[str], placements: tuple[str, ...], latencies: tuple[float, ...], bandwidths: tuple[float, ...]
) -> None:
    """The grid is the product of its axes, and no two of its points have one key."""
    axes = Axes(
        microbatches=(2, 4),
        methods=tuple(Entry(method=name) for name in methods),
        placements=placements,
        latencies=latencies,
        bandwidths=bandwidths,
    )
    points = grid_points(axes)
    sizes = (2, len(methods), len(placements), max(1, len(latencies)), max(1, len(bandwidths)))
    product = 1
    for size in sizes:
        product *= size
    keys = {point_key("d", ("a<->b",), Settings(), point) for point in points}
    assert len(points) == len(set(points)) == len(keys) == product


def test_keys_tell_all_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another profile, link, unit, option, parameter or version is another key."""
    point = Point(microbatches=4, latency=1.0, bandwidth=2.0)
    settings = Settings()
    changed = [
        point_key("other", ("a",), settings, point),
        point_key("d", ("b",), settings, point),
        *[
            point_key("d", ("a",), replace(settings, **change), point)
            for change in (
                {"latency_unit": "tf"},
                {"bandwidth_unit": "tf"},
                {"seed": 1},
                {"max_gap": 0.5},
                {"time_limit": 3.0},
            )
        ],
        *[
            point_key("d", ("a",), settings, replace(point, **change))
            for change in (
                {"microbatches": 5},
                {"memory_factor": 2.0},
                {"method": "1f1b"},
                {"placement": "ud"},
                {"chunks": 2},
                {"latency": None},
                {"bandwidth": 3.0},
            )
        ],
    ]
    monkeypatch.setattr(cpipe, "__version__", "99.0")
    changed.append(point_key("d", ("a",), settings, point))
    monkeypatch.undo()
    assert len({point_key("d", ("a",), settings, point), *changed}) == len(changed) + 1


def test_units_of_axes_that_do_not_vary_do_not_matter() -> None:
    """A point that leaves the links alone keeps its key whatever the units and the choice of links."""
    point = Point(microbatches=4)
    one = point_key("d", ("a",), Settings(latency_unit="ms"), point)
    assert one == point_key("d", (), Settings(latency_unit="tf", bandwidth_unit="tf"), point)


def test_digest_is_of_the_content() -> None:
    """The digest of a profile does not depend on the layout of its file, but on every value."""
    profile = two_sites()
    assert profile_digest(profile) == profile_digest(parse_profile(encode_profile(profile), "again.json"))
    assert profile_digest(profile) != profile_digest(replace(profile, name="other"))


def test_sweep_names_its_job() -> None:
    """A sweep's report says the profile, its T_F, the links and units, and how many points there are."""
    blank = small_sweep().blank
    assert (blank.name, blank.forward_ms, blank.links) == ("sample", 2.0, ("east<->west",))
    assert (blank.latency_unit, blank.bandwidth_unit, blank.num_points) == ("tf", None, 4)
    assert blank.profile == profile_digest(two_sites())
