"""Tests that a plan is the same bytes wherever and however often it is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

from helpers import assert_plan_ok, plan_of
from random_plans import draw_problem, draw_schedule

from cpipe.plan import encode_plan, validate

ROOT = Path(__file__).parents[2]
MAKE = """
import sys
from random import Random
sys.path[:0] = ["tests", "."]
from helpers import plan_of
from plan_edits import swap_ops
from random_plans import draw_problem, draw_schedule
from cpipe.plan import encode_plan, validate
draw = Random(7)
problem = draw_problem(draw, windows=False)
plan = plan_of(problem, draw_schedule(draw, problem))
place = max(range(len(plan.ranks)), key=lambda rank: len(plan.ranks[rank].ops))
broken = swap_ops(plan, place, 0, len(plan.ranks[place].ops) - 1)
text = encode_plan(plan).decode() + "\\n".join(map(str, validate(broken, problem, transport="nccl-rank")))
sys.stdout.buffer.write(text.encode())
"""


def test_hash_seed_changes_nothing() -> None:
    """Plans and diagnostics do not depend on the order of sets: every run of Python gives the same bytes."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", MAKE],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    (output,) = outputs
    assert output.count(b"error: ") > 1


def test_same_input_gives_the_same_bytes() -> None:
    """Lowering twice gives equal bytes, and validating twice equal faults."""
    draw = Random(11)
    problem = draw_problem(draw, windows=False)
    schedule = draw_schedule(draw, problem)
    first, second = plan_of(problem, schedule), plan_of(problem, schedule)
    assert_plan_ok(first, problem)
    assert encode_plan(first) == encode_plan(second)
    assert validate(first, problem) == validate(second, problem) == ()
