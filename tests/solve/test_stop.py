"""The wish to stop: every search listens, and what comes back is a result like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import profile_document, write_json
from helpers import assert_plan_ok

from cpipe.compiler import Compiled, SolveOptions, compile_profile
from cpipe.plan import encode_plan
from cpipe.profile import Profile, load_profile, normalize
from cpipe.sim import simulate
from cpipe.sim.memory import fits
from cpipe.solve import SolveLimits, Stop
from cpipe.solve.auto import solve


class StopAt(Stop):
    """Requests itself at the first line of progress that begins like this."""

    def __init__(self, start: str) -> None:
        super().__init__()
        self._start = start
        self.lines: list[str] = []

    def hear(self, line: str) -> None:
        """Hear a line of progress."""
        self.lines.append(line)
        if line.startswith(self._start):
            self.request()


def hard(tmp_path: Path, **changes: Any) -> Profile:
    """Return a profile that takes every search to its end: uneven stages, memory for a few microbatches."""
    document = profile_document(4, 6, **changes)
    for index, stage in enumerate(document["stages"]):
        stage["forward_ms"] += 0.137 * (index * 3 % 4)
        stage["weight_grad_ms"] += 0.071 * (index * 2 % 5)
    for device in document["devices"]:
        device["memory_bytes"] = 23_000_000_000
    return load_profile(str(write_json(tmp_path / "profile.json", document)))


def compiled(profile: Profile, stop: StopAt, **options: Any) -> Compiled:
    """Compile with a wish to stop; check what must hold of every plan."""
    result = compile_profile(profile, SolveOptions(**options), stop.hear, stop=stop)
    assert_plan_ok(result.plan, result.problem)
    assert [warning.code for warning in result.result.warnings] == ["interrupted"]
    assert result.plan.made_by.limits["interrupted"] == "yes"
    return result


def test_stopped_before_it_began(tmp_path: Path) -> None:
    """A search that is stopped at once still returns the best of what costs nothing, and says so."""
    problem = normalize(hard(tmp_path))
    stop = Stop()
    stop.request()
    result = solve(problem, limits=SolveLimits(stop=stop))
    result.schedule.verify(problem)
    assert fits(problem, result.schedule.orders)
    assert simulate(problem, result.schedule) == result.timeline
    assert result.status == "feasible"
    assert [warning.code for warning in result.warnings] == ["interrupted"]
    assert stop.has_incumbent


@pytest.mark.parametrize("line", ["greedy family", "local search"])
def test_every_search_listens(line: str, tmp_path: Path) -> None:
    """Stopped in the family or in the local search, nothing that comes later is begun."""
    stop = StopAt(line)
    result = compiled(hard(tmp_path), stop)
    assert stop.lines[-1] == "interrupted: the best order so far is used"
    after = stop.lines[stop.lines.index(line) + 1 :]
    assert not {"greedy family", "local search"} & set(after)
    assert result.result.gap > 0


def test_other_placements_are_left_out(tmp_path: Path) -> None:
    """With placement auto, a stop leaves out the placements that were not tried yet."""
    document = profile_document(2, 4)
    document["stages"] = [
        {**document["stages"][index % 2], "id": f"s{index}", "static_bytes": 1_000_000} for index in range(4)
    ]
    profile = load_profile(str(write_json(tmp_path / "profile.json", document)))
    stop = StopAt("")
    assert compiled(profile, stop, placement="auto").placement == "profile"
    free = compile_profile(profile, SolveOptions(placement="auto", method="greedy"))
    assert free.placement != "profile"


def test_narrowing_still_ends_well(tmp_path: Path) -> None:
    """Where posted receives do not fit, a stopped search still ends in a plan that fits."""
    profile = hard(tmp_path)
    stages = [{"output_bytes": 400_000_000} for _ in profile.stages]
    document = profile_document(4, 6)
    for stage, changes in zip(document["stages"], stages, strict=True):
        stage |= changes
    for device in document["devices"]:
        device["memory_bytes"] = 23_000_000_000
    loaded = load_profile(str(write_json(tmp_path / "narrow.json", document)))
    compiled(loaded, StopAt("greedy family"), receive_window=1)


def test_a_stop_that_nobody_requests(tmp_path: Path) -> None:
    """Being ready to stop changes nothing: same plan, no warning."""
    profile = load_profile(str(write_json(tmp_path / "profile.json", profile_document(2, 3))))
    stop = Stop()
    ready = compile_profile(profile, SolveOptions(method="greedy"), stop=stop)
    plain = compile_profile(profile, SolveOptions(method="greedy"))
    assert encode_plan(ready.plan) == encode_plan(plain.plan)
    assert "interrupted" not in [warning.code for warning in ready.result.warnings]
    assert "interrupted" not in ready.plan.made_by.limits
    assert stop.has_incumbent
    assert not stop.requested
