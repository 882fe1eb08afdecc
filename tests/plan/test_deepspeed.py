"""Tests of cpipe.plan.exchange.deepspeed: instruction lists, run by a small engine that blocks as DeepSpeed's does.

The engine has what a rank of DeepSpeed has: a list of buffers, one received gradient, one loss; a send and a receive
end only together.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from plan_edits import remove_op
from sample_plans import make_problem, one_f_one_b
from shapes import two_flows
from torch_tables import as_profile, job_document

from cpipe.compiler import SolveOptions, compile_profile
from cpipe.ir import Collectives, Plan, Problem, Schedule
from cpipe.plan import validate
from cpipe.plan.exchange import deepspeed_faults, deepspeed_instructions, deepspeed_text
from cpipe.schedules import static_schedule

END = [["ReduceTiedGrads"], ["ReduceGrads"], ["OptimizerStep"]]


class Rank:
    """What one rank of the engine holds, and which microbatches it has run."""

    def __init__(self, stage: int, last: int, num_buffers: int) -> None:
        self.stage, self.last = stage, last
        self.inputs: list[int | None] = [None] * num_buffers
        self.outputs: list[int | None] = [None] * num_buffers
        self.labels: list[int | None] = [None] * num_buffers
        self.gradients: list[int | None] = [None] * num_buffers
        self.received: int | None = None
        self.loss: int | None = None
        self.loaded = 0
        self.ran: list[tuple[str, int]] = []

    def run(self, name: str, buffer: int) -> None:
        """Run an instruction that needs no other rank."""
        match name:
            case "LoadMicroBatch":
                if self.stage == 0:
                    assert self.inputs[buffer] is None, "a buffer that is in use is loaded"
                    self.inputs[buffer] = self.loaded
                if self.stage == self.last:
                    self.labels[buffer] = self.loaded
                self.loaded += 1
            case "ForwardPass":
                mb = self.inputs[buffer]
                assert mb is not None, "a forward without an input"
                assert self.stage < self.last or self.labels[buffer] == mb, "the labels of another microbatch"
                self.outputs[buffer] = self.loss = mb
                self.ran.append(("F", mb))
            case "BackwardPass":
                mb = self.outputs[buffer]
                assert mb is not None, "a backward without an output"
                assert mb == (self.loss if self.stage == self.last else self.received), "the gradient of another one"
                self.outputs[buffer], self.gradients[buffer], self.received = None, mb, None
                if self.stage == 0:
                    self.inputs[buffer] = None
                self.ran.append(("B", mb))
            case _:
                assert [name] in END, f"an unknown instruction {name}"

    def send(self, name: str, buffer: int) -> int:
        """Return the microbatch that is sent."""
        mb = (self.outputs if name == "SendActivation" else self.gradients)[buffer]
        assert mb is not None, "there is nothing to send"
        if name == "SendGrad":
            self.inputs[buffer] = self.gradients[buffer] = None
        return mb

    def receive(self, name: str, buffer: int, mb: int) -> None:
        """Take what another rank sent."""
        if name == "RecvActivation":
            assert self.inputs[buffer] is None, "a buffer that is in use is received into"
            self.inputs[buffer] = mb
        else:
            assert self.received is None, "a gradient that was not used yet is overwritten"
            assert self.outputs[buffer] == mb, "the buffer of another microbatch"
            self.received = mb


PEERS = {"SendActivation": 1, "RecvGrad": 1, "SendGrad": -1, "RecvActivation": -1}
MATCHES = {"SendActivation": "RecvActivation", "SendGrad": "RecvGrad"}


def execute(document: dict[str, Any]) -> list[Rank]:
    """Run a whole document, one rank after the other as far as it gets; fail when all of them stand still."""
    last = document["stages"] - 1
    ranks = [Rank(entry["stage_id"], last, entry["num_pipe_buffers"]) for entry in document["ranks"]]
    lists = [[command for step in entry["steps"] for command in step] for entry in document["ranks"]]
    at = [0] * len(ranks)
    moved = True
    while moved:
        moved = False
        for stage, commands in enumerate(lists):
            while at[stage] < len(commands):
                name, buffer = [*commands[at[stage]], -1][:2]
                if name in PEERS:
                    peer = stage + PEERS[name]
                    theirs: list[Any] = [*lists[peer][at[peer]], -1][:2] if at[peer] < len(lists[peer]) else ["", -1]
                    if name not in MATCHES or theirs[0] != MATCHES[name] or peer + PEERS[theirs[0]] != stage:
                        break  # the sender moves both
                    ranks[peer].receive(theirs[0], theirs[1], ranks[stage].send(name, buffer))
                    at[peer] += 1
                else:
                    ranks[stage].run(name, buffer)
                at[stage] += 1
                moved = True
    stuck = [
        f"rank {stage}: {commands[at[stage]]}" for stage, commands in enumerate(lists) if at[stage] < len(commands)
    ]
    assert stuck == [], "the ranks wait for each other"
    return ranks


def orders(plan: Plan) -> list[list[tuple[str, int]]]:
    """Return the forwards and backwards of each rank as the plan has them."""
    return [[(step.op, step.mb or 0) for step in program.ops if step.op in ("F", "B")] for program in plan.ranks]


def check(plan: Plan) -> dict[str, Any]:
    """Run the exported lists; the ranks run what the plan runs, and hold nothing at the end."""
    assert deepspeed_faults(plan) == ()
    document: dict[str, Any] = json.loads(deepspeed_text(plan))
    ranks = execute(document)
    assert [rank.ran for rank in ranks] == orders(plan)
    for rank in ranks:
        assert {*rank.inputs, *rank.outputs, rank.received} == {None}
    assert all(entry["steps"][-1][-3:] == END for entry in document["ranks"])
    return document


def plan_with(problem: Problem, text: str) -> Plan:
    """Return the plan of a schedule's text."""
    plan = plan_of(problem, Schedule.from_text(text, problem.microbatches))
    assert_plan_ok(plan, problem)
    return plan


def warmed_up(p: int, n: int, warm_ups: list[int]) -> str:
    """Return the text of an order that runs so many forwards before it alternates."""
    rows = []
    for stage, ahead in enumerate(warm_ups):
        row = [f"{stage}F{mb}" for mb in range(ahead)]
        for mb in range(n):
            row.append(f"{stage}B{mb}")
            if ahead + mb < n:
                row.append(f"{stage}F{ahead + mb}")
        rows.append(" ".join(row))
    return "\n".join(rows)


@pytest.mark.parametrize(("p", "n"), [(1, 1), (1, 4), (2, 1), (2, 5), (3, 3), (4, 8), (4, 2), (8, 16)])
def test_1f1b_runs(p: int, n: int) -> None:
    """1F1B runs to its end, with a buffer for each microbatch in flight, and at most one for what is on its way.

    The first stage neither receives activations nor sends gradients: it needs no such one.
    """
    problem = make_problem(p, n)
    plan = plan_of(problem, static_schedule("1f1b", problem))
    assert_plan_ok(plan, problem)
    document = check(plan)
    assert [document[name] for name in ("target", "micro_batches", "stages")] == [
        "deepspeed.runtime.pipe.schedule",
        n,
        p,
    ]
    buffers = [entry["num_pipe_buffers"] for entry in document["ranks"]]
    in_flight = [min(n, p - stage) for stage in range(p)]
    assert all(least <= found <= least + 1 for least, found in zip(in_flight, buffers, strict=True))
    assert buffers[0] == in_flight[0]


@pytest.mark.parametrize("seed", range(60))
def test_deeper_warm_ups_run(seed: int) -> None:
    """Any number of forwards ahead, on links of any latency, finishes under blocking sends and mixes nothing up."""
    draw = Random(seed)
    p, n = draw.randint(2, 5), draw.randint(1, 7)
    warm_ups = sorted((draw.randint(1, n) for _ in range(p - 1)), reverse=True)
    problem = make_problem(p, n, latency_ms=draw.choice((0, 1, 7)))
    check(plan_with(problem, warmed_up(p, n, [*warm_ups, 1])))


@pytest.mark.parametrize("seed", range(30))
def test_searched_plans_run(seed: int) -> None:
    """Plans that a search made for stages of unlike times, without D and W apart, run where the last stage allows."""
    draw = Random(seed)
    p = draw.randint(1, 4)
    job = job_document(p, p, draw.randint(1, 6))
    for stage in job["stages"]:
        del stage["input_grad_ms"], stage["weight_grad_ms"]
        stage |= {"forward_ms": draw.choice((0, 1, 3)), "full_backward_ms": draw.choice((0, 2, 5))}
    job["links"] = [{"from": f"g{a}", "to": f"g{a + 1}", "latency_ms": draw.choice((0, 4))} for a in range(p - 1)]
    compiled = compile_profile(as_profile(job), SolveOptions(method="greedy"))
    assert_plan_ok(compiled.plan, compiled.problem)
    faults = deepspeed_faults(compiled.plan)
    if faults:
        last = orders(compiled.plan)[-1]
        assert [fault.code for fault in faults] == ["deepspeed-loss"]
        assert [kind for kind, _ in last] != ["F", "B"] * (len(last) // 2)
    else:
        check(compiled.plan)


def test_the_engine_of_these_tests_finds_faults() -> None:
    """The small engine notices a swap of a send and a receive, a buffer too few, and a gradient received too early."""
    plan = plan_with(make_problem(2, 3), warmed_up(2, 3, [2, 1]))
    text = deepspeed_text(plan)
    document = json.loads(text)
    document["ranks"][0]["num_pipe_buffers"] = 1
    with pytest.raises(IndexError, match="list"):
        execute(document)
    document = json.loads(text)
    first = document["ranks"][1]["steps"]
    first[0], first[1] = first[1], first[0]
    with pytest.raises(AssertionError, match=r"without an output|wait for each other"):
        execute(document)
    document = json.loads(text)
    for rank in document["ranks"]:
        for step in rank["steps"]:
            for command in step:
                command[1:] = [0] if command[1:] else []
    with pytest.raises(AssertionError, match="in use"):
        execute(document)


def test_gradients_are_received_when_they_are_needed() -> None:
    """Between a RecvGrad and its BackwardPass stands no other RecvGrad: the engine has room for one."""
    problem = make_problem(3, 6)
    plan = plan_with(problem, warmed_up(3, 6, [6, 4, 1]))
    for rank in deepspeed_instructions(plan):
        names = [
            command.name for step in rank.steps for command in step if command.name in ("RecvGrad", "BackwardPass")
        ]
        if "RecvGrad" in names:
            assert names == ["RecvGrad", "BackwardPass"] * 6


def test_text(golden: Callable[[str], None]) -> None:
    """The text is JSON, one step a line: instructions by class with their buffer, reductions in the last step."""
    problem = replace(make_problem(2, 3, latency_ms=1), collectives=Collectives(mode="ddp", replicas=2))
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    check(plan)
    golden(deepspeed_text(plan))


REFUSED = {
    "split": (
        make_problem(2, 1),
        "0F0 0D0 0W0\n1F0 1B0",
        "deepspeed-op",
        "rank 0: compute op 1, D of stage 0 mb 0: DeepSpeed has forward and full backward passes alone",
    ),
    "pairs": (
        make_problem(2, 2),
        "0F0 0F1 0B0 0B1\n1F0 1F1+1B0 1B1",
        "deepspeed-op",
        "rank 1: compute op 1, FB of stage 1 mb 1 with backward of stage 1 mb 0: DeepSpeed has forward",
    ),
    "two stages a rank": (
        make_problem(2, 1, placement=(0, 1, 0, 1)),
        "0F0 2F0 2B0 0B0\n1F0 3F0 3B0 1B0",
        "deepspeed-placement",
        "rank 0: compute op 1, F of stage 2 mb 0: DeepSpeed has one stage on each rank, in line",
    ),
    "reversed line": (
        make_problem(2, 1, placement=(1, 0)),
        "1F0 1B0\n0F0 0B0",
        "deepspeed-placement",
        "rank 0: compute op 0, F of stage 1 mb 0: DeepSpeed has one stage on each rank, in line",
    ),
    "an idle rank": (
        make_problem(3, 1, placement=(0, 1)),
        "0F0 0B0\n1F0 1B0\n\n",
        "deepspeed-placement",
        "2 stages on 3 ranks: DeepSpeed needs one on each",
    ),
    "GPipe": (
        make_problem(2, 2),
        "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1",
        "deepspeed-loss",
        "rank 1: compute op 1, F of stage 1 mb 1: the last stage holds one loss",
    ),
    "late second forward": (
        make_problem(2, 3),
        "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1B0 1F1 1F2 1B1 1B2",
        "deepspeed-loss",
        "rank 1: compute op 3, F of stage 1 mb 2: the last stage holds one loss",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_plans_are_refused(name: str) -> None:
    """A plan that DeepSpeed cannot run is refused, with rank, position and op of what it cannot run, and the rule."""
    problem, text, code, message = REFUSED[name]
    plan = plan_with(problem, text)
    (fault,) = deepspeed_faults(plan, file="plan.json")
    assert (fault.code, fault.file) == (code, "plan.json")
    assert message in fault.message
    assert (fault.path or "").startswith("$.problem.placement" if name == "an idle rank" else "$.ranks[")


def test_two_flows_are_refused() -> None:
    """A plan of two flows over copies of the weights is refused at the first op of the second flow."""
    problem = two_flows(2, 4)
    plan = plan_of(problem, static_schedule("chimera", problem))
    assert_plan_ok(plan, problem)
    (fault,) = deepspeed_faults(plan)
    assert fault.code == "deepspeed-placement"
    assert "one of 2 flows over copies of the weights, and DeepSpeed has one" in fault.message


def test_wrong_plans_are_refused_with_their_own_faults() -> None:
    """A plan that is not valid is refused as `validate` refuses it."""
    plan = plan_with(make_problem(2, 2), warmed_up(2, 2, [2, 1]))
    broken = signed(remove_op(plan, 0, 0))
    assert deepspeed_faults(broken) == validate(broken) != ()
