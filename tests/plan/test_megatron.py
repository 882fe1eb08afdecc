"""Tests of cpipe.plan.exchange.megatron: which plans Megatron-LM runs, and with which arguments.

The orders here are written anew, from the tables of forwards and backwards that Megatron documents, one step after the
other; the package builds them in another way.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from plan_edits import remove_op
from sample_plans import make_problem, one_f_one_b
from shapes import two_flows

from cpipe.ir import Collectives, Plan, Problem, Schedule
from cpipe.plan import validate
from cpipe.plan.exchange import megatron_arguments, megatron_faults, megatron_order, stage_layers
from cpipe.schedules import static_schedule
from cpipe.schedules.placements import loop_placement, wave_placement


def looped(p: int, chunks: int, n: int) -> Problem:
    """Return a problem of `chunks` stages on each of p devices in a loop."""
    return make_problem(p, n, placement=tuple(loop_placement(p * chunks, p)))


def table(p: int, chunks: int, n: int, group: int) -> list[tuple[int, int]]:
    """Return (microbatch, chunk) of every step: groups of microbatches, each through all chunks."""
    steps = []
    for group_number in range(-(-n // group)):
        members = [mb for mb in range(n) if mb // group == group_number]
        steps += [(mb, chunk) for chunk in range(chunks) for mb in members]
    assert len(steps) == n * chunks
    return steps


def expected_rows(p: int, chunks: int, n: int, group: int, *, overlap: bool = False, delay: bool = False) -> str:
    """Return what every rank runs, as a schedule's text."""
    rows = []
    for rank in range(p):
        steps = table(p, chunks, n, group if chunks > 1 else n)
        forward = [f"{chunk * p + rank}F{mb}" for mb, chunk in steps]
        backward = [f"{(chunks - 1 - chunk) * p + rank}B{mb}" for mb, chunk in steps]
        ahead = p - rank - 1
        if chunks > 1:
            ahead = 2 * ahead + (chunks - 1) * group
        ahead = min(ahead + (1 if overlap else 0), len(steps))
        row = forward[:ahead]
        for k in range(len(steps) - ahead):
            row.append(f"{forward[ahead + k]}+{backward[k]}" if overlap else f"{forward[ahead + k]} {backward[k]}")
        rest = backward[len(steps) - ahead :]
        row += [f"{word.replace('B', 'D')} {word.replace('B', 'W')}" if delay else word for word in rest]
        rows.append(" ".join(row))
    return "\n".join(rows)


def plan_with(problem: Problem, text: str) -> Plan:
    """Return the plan of a schedule's text."""
    plan = plan_of(problem, Schedule.from_text(text, problem.microbatches))
    assert_plan_ok(plan, problem)
    return plan


def flags(plan: Plan, layers: str) -> dict[str, str]:
    """Return the arguments of a plan by name; those without a value are empty."""
    assert megatron_faults(plan) == ()
    summary = plan.problem
    text = megatron_arguments(plan, stage_layers(layers, summary.stages, summary.devices))
    found = re.findall(r"^    (--[a-z-]+) ?(.*)$", text, flags=re.MULTILINE)
    return {name: value.strip("'") for name, value in found}


def test_the_documented_table() -> None:
    """Megatron documents the forwards of five microbatches in groups of three on 2 ranks with 2 stages each."""
    assert table(2, 2, 5, 3) == list(zip([0, 1, 2, 0, 1, 2, 3, 4, 3, 4], [0, 0, 0, 1, 1, 1, 0, 0, 1, 1], strict=True))
    units = list(megatron_order(2, 2, 5, 1, group=3))
    forwards = [slot for unit in units for slot in unit if slot[0] == "F"]
    assert [(mb, stage // 2) for _, stage, mb in forwards] == table(2, 2, 5, 3)


SHAPES = [
    (p, chunks, n, group)
    for p, chunks, n in itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2, 3, 4, 5, 8))
    for group in ([n] if chunks == 1 else range(p, n + 1))
    if p > 1 or chunks == 1
    if chunks == 1 or n % group == 0 or n % group >= p
]


@pytest.mark.parametrize(("p", "chunks", "n", "group"), SHAPES)
def test_orders_of_megatron_are_accepted(p: int, chunks: int, n: int, group: int) -> None:
    """Every order that Megatron makes goes out, with its group where several stages share a rank, and is no other."""
    plan = plan_with(looped(p, chunks, n), expected_rows(p, chunks, n, group))
    named = flags(plan, ",".join("1" for _ in range(p * chunks)))
    assert named["--pipeline-model-parallel-size"] == str(p)
    assert named.get("--microbatch-group-size-per-virtual-pipeline-stage") == (str(group) if chunks > 1 else None)
    assert not {"--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute"} & set(named)


@pytest.mark.parametrize(
    ("p", "chunks", "n", "group"), [(2, 2, 4, 2), (2, 3, 6, 3), (4, 2, 8, 4), (3, 2, 7, 4), (1, 1, 4, 4)]
)
@pytest.mark.parametrize("delay", [False, True])
def test_overlapped_orders_are_accepted(p: int, chunks: int, n: int, group: int, delay: bool) -> None:
    """FB in the steady phase, after one more forward, asks for the overlap; D and W in the rest for delayed W."""
    problem = looped(p, chunks, n)
    plan = plan_with(problem, expected_rows(p, chunks, n, group, overlap=True, delay=delay))
    named = flags(plan, ",".join("1" for _ in range(p * chunks)))
    assert named["--overlap-moe-expert-parallel-comm"] == ""
    assert ("--delay-wgrad-compute" in named) is delay


def test_one_pair_less_is_another_order() -> None:
    """With the overlap every forward of the steady phase has its backward beside it: one FB torn apart is refused."""
    text = expected_rows(2, 2, 4, 2, overlap=True)
    assert "0F3+2B0" in text
    (fault,) = megatron_faults(plan_with(looped(2, 2, 4), text.replace("0F3+2B0", "0F3 2B0")))
    assert fault.code == "megatron-order"
    assert "F of stage 0 mb 3: Megatron would run F of stage 0 mb 3 with B of stage 2 mb 0" in fault.message


def test_one_whole_backward_among_delayed_ones_is_refused() -> None:
    """With delayed W every backward of the last phase is D and W; a B among them is named."""
    text = expected_rows(2, 2, 4, 2, overlap=True, delay=True)
    assert text.splitlines()[0].endswith("0D3 0W3")
    (fault,) = megatron_faults(plan_with(looped(2, 2, 4), text.replace("0D3 0W3", "0B3")))
    assert fault.code == "megatron-order"
    assert "B of stage 0 mb 3: Megatron would run D of stage 0 mb 3" in fault.message


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b"])
def test_our_schedules_of_these_names_go_out(name: str) -> None:
    """1F1B and interleaved 1F1B are Megatron's own where its groups divide the microbatches."""
    problem = looped(4, 1 if name == "1f1b" else 2, 8)
    plan = plan_of(problem, static_schedule(name, problem))
    assert_plan_ok(plan, problem)
    assert megatron_faults(plan) == ()


def test_arguments(golden: Callable[[str], None]) -> None:
    """The text is an array of bash: sizes, layout, group, and how many sequences a step has."""
    problem = replace(looped(4, 2, 8), collectives=Collectives(mode="zero1", replicas=2))
    plan = plan_with(problem, expected_rows(4, 2, 8, 4, overlap=True, delay=True))
    golden(megatron_arguments(plan, stage_layers("3,4x5,3,m", 8, 4)))


def test_distributed_optimizer_is_for_zero1() -> None:
    """A ZeRO-1 plan asks for the distributed optimizer, a DDP plan and one without replicas do not."""
    problem = make_problem(2, 2)
    for mode, wanted in (("zero1", True), ("ddp", False)):
        shared = replace(problem, collectives=Collectives(mode=mode, replicas=2))  # type: ignore[arg-type]
        plan = plan_of(shared, one_f_one_b(shared))
        assert_plan_ok(plan, shared)
        assert ("--use-distributed-optimizer" in flags(plan, "1,1")) is wanted
    plan = plan_with(problem, expected_rows(2, 1, 2, 2))
    assert "--use-distributed-optimizer" not in flags(plan, "1,1")


def v_shape() -> tuple[Problem, str]:
    """Return four stages on two ranks in a V, and an order of theirs."""
    problem = make_problem(2, 1, placement=tuple(wave_placement(4, 2)))
    return problem, "0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0"


REFUSED = {
    "V placement": (
        *v_shape(),
        "megatron-placement",
        "$.ranks[0]",
        "rank 0: compute op 1, F of stage 3 mb 0: Megatron has stage 3 on rank 1, and stage k on rank k mod 2",
    ),
    "reversed line": (
        make_problem(2, 1, placement=(1, 0)),
        "1F0 1B0\n0F0 0B0",
        "megatron-placement",
        "$.ranks[0]",
        "rank 0: compute op 0, F of stage 1 mb 0: Megatron has stage 1 on rank 1",
    ),
    "uneven": (
        make_problem(2, 1, placement=(0, 1, 0)),
        "0F0 2F0 2B0 0B0\n1F0 1B0",
        "megatron-placement",
        "$.ranks[0]",
        "rank 0: compute op 1, F of stage 2 mb 0: Megatron wants the same number of stages on each of 2 ranks",
    ),
    "GPipe": (
        make_problem(2, 2),
        "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1",
        "megatron-order",
        "$.ranks[1]",
        "rank 1: compute op 1, F of stage 1 mb 1: Megatron would run B of stage 1 mb 0",
    ),
    "deeper warm-up": (
        make_problem(2, 3),
        "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2",
        "megatron-order",
        "$.ranks[0]",
        "rank 0: compute op 2, F of stage 0 mb 2: Megatron would run B of stage 0 mb 0",
    ),
    "split": (
        make_problem(2, 1),
        "0F0 0D0 0W0\n1F0 1D0 1W0",
        "megatron-flag",
        "$.ranks[0]",
        "D of stage 0 mb 0: Megatron runs a full backward: --delay-wgrad-compute is for plans with FB",
    ),
    "pairs on a line": (
        make_problem(2, 3),
        "0F0 0F1 0F2+0B0 0B1 0B2\n1F0 1F1+1B0 1F2+1B1 1B2",
        "megatron-flag",
        "$.ranks[1]",
        "FB of stage 1 mb 1 with backward of stage 1 mb 0: --overlap-moe-expert-parallel-comm needs several stages",
    ),
    "two stages on one rank": (
        make_problem(1, 1, placement=(0, 0)),
        "0F0 1F0 1B0 0B0",
        "megatron-flag",
        "$.ranks[0]",
        "rank 0: compute op 1, F of stage 1 mb 0: Megatron has one stage on a single rank",
    ),
    "group below the ranks": (
        looped(2, 2, 2),
        "0F0 2F0 2B0 0B0 0F1 2F1 2B1 0B1\n1F0 3F0 3B0 1B0 1F1 3F1 3B1 1B1",
        "megatron-flag",
        "$.ranks[0]",
        "F of stage 2 mb 0: a group of 1 of 2 microbatches, and Megatron wants one of 2 to 2 that leaves a remainder",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_plans_are_refused(name: str) -> None:
    """A plan that Megatron would not run is refused, with rank, position and op of the first difference."""
    problem, text, code, path, message = REFUSED[name]
    (fault,) = megatron_faults(plan_with(problem, text), file="plan.json")
    assert (fault.code, fault.file) == (code, "plan.json")
    assert message in fault.message
    assert re.fullmatch(r"\$\.ranks\[\d+\]\.ops\[\d+\]", fault.path or "")
    assert fault.path is not None
    assert fault.path.startswith(f"{path}.ops")


def test_the_path_is_that_of_the_op() -> None:
    """The path of a refusal leads to the op that the message names."""
    problem, text = v_shape()
    plan = plan_with(problem, text)
    (fault,) = megatron_faults(plan)
    rank, at = map(int, re.findall(r"\d+", fault.path or ""))
    step = plan.ranks[rank].ops[at]
    assert (step.op, step.stage, step.mb) == ("F", 3, 0)


def test_groups_as_even_as_can_be_are_ours_alone() -> None:
    """7 microbatches in groups of at most 3: ours are 3, 2, 2, Megatron's 3, 3, 1; it refuses that remainder."""
    problem = looped(2, 2, 7)
    plan = plan_of(problem, static_schedule("interleaved-1f1b", problem, group_size=3))
    assert_plan_ok(plan, problem)
    (fault,) = megatron_faults(plan)
    assert fault.code == "megatron-flag"
    assert "a group of 3 of 7 microbatches" in fault.message


def test_two_flows_are_refused() -> None:
    """A plan of two flows over copies of the weights is refused at the first op of the second flow."""
    problem = two_flows(2, 4)
    plan = plan_of(problem, static_schedule("chimera", problem))
    assert_plan_ok(plan, problem)
    (fault,) = megatron_faults(plan)
    assert (fault.code, "one of 2 flows over copies of the weights" in fault.message) == ("megatron-placement", True)


def test_wrong_plans_are_refused_with_their_own_faults() -> None:
    """A plan that is not valid is refused as `validate` refuses it."""
    plan = plan_with(make_problem(2, 2), expected_rows(2, 1, 2, 2))
    broken = signed(remove_op(plan, 0, 0))
    assert megatron_faults(broken) == validate(broken) != ()
