"""Tests of cpipe.profile.recompute: what a stage costs that recomputes, against a walk through its memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sample_profiles import BASE, STAGE, edited, encoded
from strategies import profiles

from cpipe.errors import InfeasibleError, ProfileError, UsageError
from cpipe.ir import Stage
from cpipe.plan import problem_digest
from cpipe.profile import Profile, RecomputeSpec, encode_profile, lightest, normalize, parse_profile
from cpipe.profile.memory import everything_bytes
from cpipe.profile.recompute import offers, recomputing
from cpipe.sim import memory_peaks
from cpipe.units import Bytes, Ns

OFFER = {"activation_bytes": 5, "extra_ms": 2}


def load(document: Any) -> Profile:
    """Return the profile of a plain dict."""
    return parse_profile(encoded(document), "p.json")


def stages(waits: bool = False) -> st.SearchStrategy[Stage]:
    """Draw a stage; with `waits` its D takes no time."""
    sizes = {
        name: st.integers(0, 9).map(Bytes)
        for name in (
            "activation_bytes",
            "held_bytes",
            "forward_transient_bytes",
            "input_grad_transient_bytes",
            "weight_grad_transient_bytes",
        )
    }
    return st.builds(
        Stage,
        name=st.just("s"),
        device=st.just(0),
        forward_ns=st.just(Ns(5)),
        input_grad_ns=st.just(Ns(0)) if waits else st.integers(1, 4).map(Ns),
        weight_grad_ns=st.integers(0, 4).map(Ns),
        full_backward_ns=st.integers(0, 9).map(Ns),
        **sizes,
    )


def needs(stage: Stage) -> dict[str, tuple[int, int]]:
    """Return what the device holds while each op of one microbatch runs and after it, by F D W and by F B [bytes]."""
    levels: dict[str, tuple[int, int]] = {}
    activation: int = stage.activation_bytes
    levels["F"] = activation + stage.forward_transient_bytes, activation
    levels["B"] = activation + stage.whole_transient_bytes, 0
    during = max(activation, stage.held_bytes) + stage.input_grad_transient_bytes
    levels["D"] = during, stage.held_bytes
    levels["W"] = stage.held_bytes + stage.weight_grad_transient_bytes, 0
    return levels


@given(stages(), st.data())
def test_stage_whose_input_gradient_recomputes(stage: Stage, data: st.DataObject) -> None:
    """F leaves the kept part; D and B have the whole activation beside their transients; D and B take the time."""
    kept = data.draw(st.integers(0, stage.activation_bytes))
    changed = recomputing(stage, RecomputeSpec(activation_bytes=kept, extra_ms=3e-6))
    before, after = needs(stage), needs(changed)
    assert after == {
        "F": (kept + stage.forward_transient_bytes, kept),
        "D": before["D"],
        "W": before["W"],
        "B": before["B"],
    }
    assert (changed.input_grad_ns, changed.weight_grad_ns) == (stage.input_grad_ns + 3, stage.weight_grad_ns)
    assert changed.full_backward_ns == stage.full_backward_ns + 3
    assert (changed.recomputes, changed.recompute_ns) == (True, 3)


@given(stages(waits=True), st.data())
def test_stage_whose_weight_gradient_recomputes(stage: Stage, data: st.DataObject) -> None:
    """Where D takes no time it needs nothing either: W takes the time, and no more is held before it than F left."""
    kept = data.draw(st.integers(0, stage.activation_bytes))
    changed = recomputing(stage, RecomputeSpec(activation_bytes=kept, extra_ms=3e-6))
    held, after = min(kept, stage.held_bytes), needs(changed)
    assert after["F"] == (kept + stage.forward_transient_bytes, kept)
    assert after["D"] == (kept + stage.input_grad_transient_bytes, held)
    whole = max(stage.activation_bytes, stage.held_bytes)
    assert after["W"] == (whole + stage.weight_grad_transient_bytes, 0)
    assert after["B"] == needs(stage)["B"]
    assert (changed.input_grad_ns, changed.weight_grad_ns) == (0, stage.weight_grad_ns + 3)
    assert changed.full_backward_ns == stage.full_backward_ns + 3


def test_stage_that_cannot_split() -> None:
    """A stage with a full backward alone recomputes in it."""
    document = edited(
        {"$.stages[1].activation_bytes": 9, "$.stages[1].recompute": {"activation_bytes": 4, "extra_ms": 1}}
    )
    whole, changed = (normalize(load(document), recompute=choice).stages[1] for choice in ((), (1,)))
    assert not changed.can_split
    assert changed.full_backward_ns == whole.full_backward_ns + 1_000_000
    assert (changed.input_grad_ns, changed.weight_grad_ns) == (0, 0)
    assert (changed.activation_bytes, changed.whole_transient_bytes) == (4, 5)


@given(profiles())
def test_choice_not_taken_changes_nothing(document: dict[str, Any]) -> None:
    """A stage that may recompute and does not is a stage that may not: same problem, same digest."""
    without = {
        **document,
        "stages": [{key: value for key, value in stage.items() if key != "recompute"} for stage in document["stages"]],
    }
    problem = normalize(load(document), prove_memory=False)
    assert problem == normalize(load(without), prove_memory=False)
    assert problem.recompute == ()


@given(profiles())
def test_choice_taken_is_part_of_the_problem(document: dict[str, Any]) -> None:
    """A choice is told by the problem, in order, and changes its digest; the others are as they were."""
    profile = load(document)
    offered = offers(profile)
    free, taken = (normalize(profile, prove_memory=False, recompute=choice) for choice in ((), offered[::-1]))
    assert taken.recompute == offered
    assert (problem_digest(free) == problem_digest(taken)) == (not offered)
    for index, (ours, theirs) in enumerate(zip(free.stages, taken.stages, strict=True)):
        assert (ours == theirs) == (index not in offered)
    assert replace(taken, stages=free.stages) == free


@given(profiles(max_stages=3), st.data())
def test_lightest_job_needs_least(document: dict[str, Any], data: st.DataObject) -> None:
    """No op takes longer and no order holds more in the lightest job than under any choice."""
    profile = load(document)
    light = lightest(normalize(profile, prove_memory=False), profile)
    choice = data.draw(st.sets(st.sampled_from(offers(profile)))) if offers(profile) else set()
    problem = normalize(profile, prove_memory=False, recompute=tuple(choice))
    for ours, theirs in zip(light.stages, problem.stages, strict=True):
        for name in ("forward_ns", "input_grad_ns", "weight_grad_ns", "full_backward_ns"):
            assert getattr(ours, name) <= getattr(theirs, name)
    n = problem.microbatches
    for kinds in ((0, 3), (0, 1, 2)):  # F, then B or D and W, microbatch after microbatch or kind after kind
        for by_kind in (False, True):
            keys = [(mb, kind) for kind in kinds for mb in range(n)] if by_kind else []
            keys = keys or [(mb, kind) for mb in range(n) for kind in kinds]
            orders = [
                [(stage * n + mb) * 4 + kind for mb, kind in keys for stage in problem.stages_of(device)]
                for device in range(problem.num_devices)
            ]
            pairs = zip(memory_peaks(light, orders), memory_peaks(problem, orders), strict=True)
            assert all(ours <= theirs for ours, theirs in pairs)


@given(stages(), st.data())
def test_all_that_a_stage_may_hold(stage: Stage, data: st.DataObject) -> None:
    """What may be held at once covers every op of a stage that recomputes."""
    kept = data.draw(st.integers(0, stage.activation_bytes))
    changed = recomputing(stage, RecomputeSpec(activation_bytes=kept, extra_ms=1))
    assert everything_bytes(changed) >= max(during for during, _ in needs(changed).values())


def test_stage_keeps_no_more_than_it_has() -> None:
    """Recomputing cannot keep more than the activation."""
    document = edited({f"{STAGE}.recompute": {"activation_bytes": 21, "extra_ms": 1}})
    expected = (
        r"\$\.stages\[0\]\.recompute\.activation_bytes: recomputing keeps part of the stage's activation_bytes 20, "
        r"got 21 \[recompute-keeps-more\]"
    )
    with pytest.raises(ProfileError, match=expected):
        load(document)
    assert offers(load(edited({f"{STAGE}.recompute": {"activation_bytes": 20, "extra_ms": 0}}))) == (0,)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            {"extra_ms": 1},
            r'\$\.stages\[0\]\.recompute: the required key "activation_bytes" is missing \[missing-key\]',
        ),
        (
            {"activation_bytes": 1},
            r'\$\.stages\[0\]\.recompute: the required key "extra_ms" is missing \[missing-key\]',
        ),
        ({**OFFER, "extra_ms": -1}, r"\.recompute\.extra_ms: expected a number >= 0, got -1 \[negative-duration\]"),
        ({**OFFER, "extra": 1}, r'\.recompute\.extra: unknown key "extra" \[unknown-key\]'),
        (True, r"\$\.stages\[0\]\.recompute: expected an object, got true \[wrong-type\]"),
        (None, r"\$\.stages\[0\]\.recompute: expected an object, got null \[wrong-type\]"),
    ],
)
def test_wrong_field(value: Any, expected: str) -> None:
    """Each part of the field is checked and told with its path."""
    with pytest.raises(ProfileError, match=expected):
        load(edited({f"{STAGE}.recompute": value}))


def test_time_that_does_not_fit() -> None:
    """The time that recomputing may add counts for the longest iteration."""
    document = edited({f"{STAGE}.recompute": {"activation_bytes": 0, "extra_ms": 1e12}, "$.microbatches": 5})
    with pytest.raises(ProfileError, match=r"one iteration could take 5e\+12 ms.*\[total-time-too-large\]"):
        load(document)


def test_choice_that_is_not_offered() -> None:
    """A choice names stages that offer it."""
    profile = load(edited({f"{STAGE}.recompute": OFFER}))
    with pytest.raises(UsageError, match=r'stage 1 \("s1"\) offers no recomputation \[recompute-not-offered\]'):
        normalize(profile, recompute=(0, 1))
    with pytest.raises(UsageError, match=r"stage 7 offers no recomputation"):
        normalize(profile, recompute=(7,))


def test_hint_where_memory_does_not_suffice() -> None:
    """Where one microbatch does not fit, stages that could recompute and do not are pointed out."""
    small = {"$.devices[0].memory_bytes": 10, "$.stages[0].output_bytes": 0}
    with pytest.raises(InfeasibleError, match="needs 20 bytes for one microbatch") as error:
        normalize(load(edited(small)))
    assert "recompute" not in str(error.value.hint)
    with pytest.raises(InfeasibleError, match="needs 20 bytes for one microbatch") as error:
        normalize(load(edited({**small, f"{STAGE}.recompute": OFFER})))
    assert str(error.value.hint).endswith("or let more stages recompute")


def test_both_copies_of_a_stage() -> None:
    """In both directions each copy of a stage makes its own choice."""
    document = edited({"$.data_parallel": ..., f"{STAGE}.recompute": OFFER})
    profile = load(document)
    assert normalize(profile, flows=2, recompute=(2,), prove_memory=False).recompute == (2,)
    assert normalize(profile, flows=2, recompute=(0, 2), prove_memory=False).recompute == (0, 2)
    free = normalize(profile, flows=2, prove_memory=False)
    assert [stage.activation_bytes for stage in lightest(free, profile).stages] == [5, 0, 5, 0]


def test_field_is_written_back() -> None:
    """A profile with the field comes back as it was."""
    profile = load(edited({f"{STAGE}.recompute": OFFER}))
    assert parse_profile(encode_profile(profile), "p.json") == profile
    assert json.loads(encode_profile(profile))["stages"][0]["recompute"] == {"activation_bytes": 5, "extra_ms": 2.0}
    assert "recompute" not in json.loads(encode_profile(load(BASE)))["stages"][0]
