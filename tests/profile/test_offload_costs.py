"""Tests of `offload` in a profile: its fields, its time, and the job that no choice of what is offloaded can beat."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle.orders import random_schedule
from random_offloads import draw_offering, draw_offloads
from random_plans import draw_problem, draw_schedule
from sample_profiles import edited, encoded
from strategies import profiles

from cpipe.errors import ProfileError
from cpipe.ir import Device, Problem, Stage
from cpipe.plan import problem_digest
from cpipe.profile import Profile, encode_profile, lightest, normalize, parse_profile
from cpipe.profile.offload import bounded, offers_offload, unloaded
from cpipe.profile.recompute import recomputing
from cpipe.profile.schema import RecomputeSpec
from cpipe.sim import memory_peaks, simulate
from cpipe.sim.memory import memory_steps
from cpipe.units import Bytes, Ns


def load(document: Any) -> Profile:
    """Return the profile of a document."""
    return parse_profile(encoded(document), "p.json")


STAGE = "$.stages[0]"


def with_offload(**offload: Any) -> dict[str, Any]:
    """Return a document whose first stage has 20 bytes of activation and this `offload`."""
    return edited({f"{STAGE}.activation_bytes": 20, f"{STAGE}.offload": offload})


@pytest.mark.parametrize(
    ("offload", "moved", "length"),
    [
        ({"bytes": 20}, 20, 0),
        ({"bytes": 10, "bandwidth_gbit_s": 0.01}, 10, 8000),
        ({"bytes": 10, "bandwidth_gbit_s": 0.01, "latency_ms": 0.002}, 10, 10_000),
        ({"bytes": 1, "latency_ms": 1.5}, 1, 1_500_000),
    ],
)
def test_costs(offload: dict[str, Any], moved: int, length: int) -> None:
    """One copy takes latency and bytes over bandwidth, either way; without a bandwidth only the latency."""
    stage = normalize(load(with_offload(**offload)), prove_memory=False).stages[0]
    assert (stage.offload_bytes, stage.offload_ns) == (moved, length)


def test_written_again() -> None:
    """What a profile says of offloading is kept when it is written."""
    profile = load(with_offload(bytes=10, bandwidth_gbit_s=100.0))
    assert parse_profile(encode_profile(profile), "again.json") == profile
    assert json.loads(encode_profile(profile))["stages"][0]["offload"] == {"bytes": 10, "bandwidth_gbit_s": 100.0}


@pytest.mark.parametrize(
    ("offload", "message"),
    [
        ({"bytes": 21}, "offloading moves part of the stage's activation_bytes 20, got 21 [offload-too-large]"),
        ({"bytes": 0}, f"{STAGE}.offload.bytes: expected "),
        ({}, f'{STAGE}.offload: the required key "bytes" is missing [missing-key]'),
        ({"bytes": 1, "bandwidth_gbit_s": 0}, f"{STAGE}.offload.bandwidth_gbit_s: expected "),
        ({"bytes": 1, "latency_ms": -1}, f"{STAGE}.offload.latency_ms: expected "),
        ({"bytes": 1, "beta": 3}, f'{STAGE}.offload.beta: unknown key "beta" [unknown-key]'),
    ],
)
def test_wrong_offloads(offload: dict[str, Any], message: str) -> None:
    """A wrong `offload` is refused with its place."""
    with pytest.raises(ProfileError, match=re.escape(message)):
        load(with_offload(**offload))


def test_a_job_without_is_the_same_job() -> None:
    """Without the field the problem and its digest are what they were; with it the digest is another."""
    plain = normalize(load(edited({f"{STAGE}.activation_bytes": 20})), prove_memory=False)
    offering = normalize(load(with_offload(bytes=5, latency_ms=1)), prove_memory=False)
    assert not offers_offload(plain)
    assert problem_digest(plain) != problem_digest(offering)
    stages = (replace(offering.stages[0], offload_bytes=Bytes(0), offload_ns=Ns(0)), *offering.stages[1:])
    assert problem_digest(replace(offering, stages=stages)) == problem_digest(plain)


def test_who_recomputes_offloads_nothing() -> None:
    """A stage keeps little or moves much, not both; the lightest job takes the smaller of the two."""
    stage = replace(unit_stage(), activation_bytes=Bytes(10), offload_bytes=Bytes(4), offload_ns=Ns(3))
    changed = recomputing(stage, RecomputeSpec(activation_bytes=8, extra_ms=1))
    assert (changed.offload_bytes, changed.offload_ns, changed.activation_bytes) == (0, 0, 8)
    for kept, least in ((8, 6), (2, 2)):
        document = with_offload(bytes=4)
        document["stages"][0] |= {
            "activation_bytes": 10,
            "recompute": {"activation_bytes": kept, "extra_ms": 1},
        }
        profile = load(document)
        light = unloaded(lightest(normalize(profile, prove_memory=False), profile)).stages[0]
        assert (light.activation_bytes, light.offload_bytes) == (least, 0)


def unit_stage() -> Stage:
    """Return a stage of unit times."""
    one = Ns(1)
    return Stage(name="s", device=0, forward_ns=one, input_grad_ns=one, weight_grad_ns=one, full_backward_ns=Ns(2))


@settings(max_examples=60)
@given(sizes=st.tuples(*[st.integers(0, 9)] * 6), share=st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(1, 4)]))
def test_unloaded_stage(sizes: tuple[int, ...], share: Fraction) -> None:
    """While its ops run an unloaded stage needs what it needed; between them that much less."""
    activation, moved, held, forward, input_grad, weight_grad = sizes
    stage = replace(
        unit_stage(),
        activation_bytes=Bytes(activation + moved),
        offload_bytes=Bytes(moved),
        held_bytes=Bytes(held),
        forward_transient_bytes=Bytes(forward),
        input_grad_transient_bytes=Bytes(input_grad),
        weight_grad_transient_bytes=Bytes(weight_grad),
    )
    problem = replace(ONE, stages=(stage,))
    lighter = unloaded(problem, share)
    lighter.verify()
    away = int(moved * share)
    (f, d, w, b), (lf, ld, lw, lb) = memory_steps(problem), memory_steps(lighter)
    assert lf == (f.during, f.after - away)
    # the level before D and B is lower by what is away
    assert ld == (d.during + away, d.after + away)
    assert lb == (b.during + away, b.after + away)
    assert lw == w
    assert not offers_offload(lighter)


ONE = Problem(microbatches=1, devices=(Device(name="g"),), stages=())


def test_no_choice_of_offloads_needs_less() -> None:
    """With all copies free and everything always away, an order needs no more memory and no more time."""
    for seed in range(80):
        draw = Random(seed)
        problem = draw_offering(draw, draw_problem(draw, windows=False))
        schedule = draw_offloads(draw, problem, draw_schedule(draw, problem))
        light = unloaded(problem)
        least = memory_peaks(light, schedule.orders)
        peaks = memory_peaks(problem, schedule.orders, (), schedule.offloads)
        assert all(below <= peak for below, peak in zip(least, peaks, strict=True))


@settings(max_examples=40, deadline=None)
@given(document=profiles(offload=True, max_stages=4, max_microbatches=3), seed=st.integers(0, 9))
def test_drawn_profiles(document: dict[str, Any], seed: int) -> None:
    """Any profile with `offload` makes a right problem, and its unloaded one replays orders just as fast."""
    problem = normalize(load(document), prove_memory=False)
    problem.verify()
    schedule = random_schedule(problem, Random(seed))
    light = unloaded(problem)
    light.verify()
    assert simulate(light, schedule).makespan_ns == simulate(problem, schedule).makespan_ns


def test_bounded() -> None:
    """Bounds of schedules with offloads are those of the unloaded job."""
    problem = replace(ONE, stages=(replace(unit_stage(), activation_bytes=Bytes(2), offload_bytes=Bytes(1)),))
    assert bounded(problem, False) is problem
    assert bounded(problem, True) == unloaded(problem)
