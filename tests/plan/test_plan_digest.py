"""Tests of cpipe.plan.digest: what a digest covers and what it leaves out."""

from __future__ import annotations

import hashlib
import re

from hand_plans import hand_plan
from helpers import assert_plan_ok, plan_of
from msgspec.structs import replace
from sample_plans import make_problem, one_f_one_b

from cpipe.ir import Collectives
from cpipe.plan import encode_plan, plan_digest, problem_digest
from cpipe.units import Bytes, Ns

PROBLEM = make_problem(2, 2, latency_ms=1)


def test_plan_digest_is_that_of_the_file() -> None:
    """The digest of a plan is the SHA-256 of its file with the digest field emptied: any tool can check it."""
    plan = plan_of(PROBLEM, one_f_one_b(PROBLEM))
    assert_plan_ok(plan, PROBLEM)
    text = re.sub(rb'"digest": "[^"]*"', b'"digest": ""', encode_plan(plan), count=1)
    assert plan.digest == "sha256:" + hashlib.sha256(text).hexdigest()
    assert plan_digest(replace(plan, digest="sha256:other")) == plan.digest


def test_plan_digest_covers_everything_else() -> None:
    """Every field of a plan but the digest changes its digest."""
    plan = hand_plan([0], 1, ["F0.0 B0.0"])
    other = hand_plan([0, 0], 2, ["F0.0", "F0.1"], [(0, 1, "activation", 2)], makespan_ns=1)
    for name in plan.__struct_fields__:
        if name in ("format", "version", "digest", "groups"):
            continue
        value = {"a": 1} if name == "extensions" else getattr(other, name)
        if value == getattr(plan, name):
            value = replace(plan.made_by, seed=1)
        assert plan_digest(replace(plan, **{name: value})) != plan.digest, name


def test_problem_digest_covers_the_profile() -> None:
    """Every cost, name, limit and link of a problem changes its digest."""
    digest = problem_digest(PROBLEM)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest)
    stage, hop, device = PROBLEM.stages[0], PROBLEM.forward_hops[0], PROBLEM.devices[0]
    assert hop is not None
    changed = [
        replace(PROBLEM, name="other"),
        replace(PROBLEM, microbatches=3),
        replace(PROBLEM, pipes=("x", *PROBLEM.pipes[1:])),
        replace(PROBLEM, collectives=Collectives(mode="ddp", replicas=2)),
        replace(PROBLEM, extensions_digest="sha256:1"),
        replace(PROBLEM, devices=(replace(device, capacity_bytes=Bytes(0)), PROBLEM.devices[1])),
        replace(PROBLEM, forward_hops=(None,)),
        replace(PROBLEM, backward_hops=(replace(hop, latency_ns=Ns(7)),)),
        replace(PROBLEM, stages=(replace(stage, can_split=False), PROBLEM.stages[1])),
        replace(PROBLEM, stages=(replace(stage, static_bytes=Bytes(1)), PROBLEM.stages[1])),
    ]
    assert len({digest, *map(problem_digest, changed)}) == len(changed) + 1


def test_problem_digest_leaves_the_window_out() -> None:
    """A receive window is a choice of the search: plans made with and without it are for the same problem."""
    assert problem_digest(replace(PROBLEM, receive_window=2)) == problem_digest(PROBLEM)


def test_problem_digest_is_stable() -> None:
    """The digest of a problem is the same on every machine and in every run; it changes only with the format."""
    assert problem_digest(PROBLEM) == "sha256:14da487835bdd89747978fbd10b393720ed5f86665e02d09eb8a4ee059ecb0b4"
