"""Tests of what keeps a run safe: it starts only when all agree, and ends everywhere, soon, with one story."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
import torch.distributed as dist
from helpers import signed
from msgspec.structs import replace
from plan_edits import edit_problem, insert_op, remove_op, swap_ops
from runtime_models import IMPATIENT, PATIENT, make_data, make_stage, plan_by, squared_error
from runtime_workers import run_ranks
from sample_plans import make_problem
from torch import nn

from cpipe.ir import Plan
from cpipe.plan import decode_plan, encode_plan
from cpipe.runtime import PlanExecutor, RuntimeFault, Watchdog
from cpipe.runtime.specs import TensorSpec

NUM_RANKS = 3
MICROBATCHES = 4

Story = tuple[str, str, int | None, int | None, int | None]  # code, message, rank, stage, microbatch


def good_plan(microbatches: int = MICROBATCHES) -> Plan:
    """Return a plan of three ranks in which every kind of op occurs."""
    return plan_by("zb-h1", make_problem(NUM_RANKS, microbatches, latency_ms=5))


def story(fault: RuntimeFault) -> Story:
    """Return a fault as plain values."""
    return fault.code, str(fault), fault.rank, fault.stage, fault.microbatch


def stages_of(plan: Plan, rank: int) -> dict[int, nn.Module]:
    """Return the modules that the plan places on `rank`."""
    num_stages = plan.problem.stages
    return {
        stage: make_stage("block", stage, num_stages)
        for stage, device in enumerate(plan.problem.placement)
        if device == rank
    }


def the_one(stories: list[Any]) -> Story:
    """Return the story that all ranks tell."""
    assert len(set(stories)) == 1, stories
    told: Story = stories[0]
    return told


# --- start


def start_all(rank: int, world_size: int, plans: dict[str, bytes]) -> dict[str, Story | None]:
    """Try to start with each thing that is wrong, on all ranks or on the last one alone."""
    here = rank == world_size - 1
    good, longer = (decode_plan(plans.pop(name), name) for name in ("good", "longer"))
    wide, narrow = ((TensorSpec((2, 5, width), torch.float64, True),) for width in (8, 6))
    trials: dict[str, tuple[Plan, dict[int, nn.Module], dict[str, Any]]] = {
        name: (plan, stages_of(good, rank), {})
        for name, plan in ((name, decode_plan(data, name)) for name, data in plans.items())
    }
    stages = stages_of(good, rank)
    trials["other plan"] = (longer if here else good), stages, {}
    trials["no module"] = good, {} if here else stages, {}
    trials["foreign module"] = good, stages | ({0: stages[rank]} if here else {}), {}
    trials["no loss"] = good, stages, {"loss_fn": None}
    trials["same rank"] = good, stages_of(good, 1 if here else rank), {"rank": 1 if here else rank}
    trials["no such rank"] = good, stages, {"rank": 7 if here else rank}
    trials["scaling"] = good, stages, {"scale_grads": not here}
    trials["specs"] = good, stages, {"specs": {0: narrow if here else wide}}
    return {name: _start(*trial) for name, trial in trials.items()}


def _start(plan: Plan, stages: dict[int, nn.Module], options: dict[str, Any]) -> Story | None:
    options = {"loss_fn": squared_error} | options
    try:
        with PlanExecutor(plan, stages, watchdog=PATIENT, **options):
            return None
    except RuntimeFault as fault:
        return story(fault)


def bad_plans() -> dict[str, Plan]:
    """Return plans that would compute wrong numbers, crash or hang in a runtime that does not look."""
    plan = good_plan()
    ops = plan.ranks[1].ops
    receives = [index for index, step in enumerate(ops) if step.op == "RECV" and step.channel == ops[0].channel]
    first = next(index for index, step in enumerate(ops) if step.op == "F")
    last = next(index for index, step in enumerate(plan.ranks[2].ops) if step.op == "F")
    return {
        "reordered receive": swap_ops(plan, 1, receives[0], receives[1]),
        "missing receive": remove_op(plan, 1, receives[-1]),
        "missing send": remove_op(plan, 1, next(index for index, step in enumerate(ops) if step.op == "SEND")),
        "duplicated op": insert_op(plan, 1, first, ops[first]),
        "wrong placement": edit_problem(plan, placement=(1, 0, 2)),
        "missing op": remove_op(plan, 2, last),
    }


def test_start_is_refused() -> None:
    """Whatever is wrong or differs before the first step, every rank refuses, and says what and where."""
    plans = {name: encode_plan(signed(plan)) for name, plan in bad_plans().items()}
    plans["touched"] = encode_plan(replace(good_plan(), digest="sha256:" + "0" * 64))
    plans |= {"good": encode_plan(good_plan()), "longer": encode_plan(good_plan(MICROBATCHES + 1))}
    results = run_ranks(start_all, NUM_RANKS, plans)
    told = {name: the_one([found[name] for found in results]) for name in results[0]}
    for name in (*bad_plans(), "touched"):
        assert told[name][0] == "invalid-plan", name
    expected = {
        "reordered receive": "[swapped]",
        "missing receive": "[missing-receive]",
        "missing send": "[missing-send]",
        "duplicated op": "[duplicate-op]",
        "wrong placement": "[wrong-rank]",
        "missing op": "[missing-op]",
        "touched": "[plan-digest]",
        "other plan": "the plan (its digest) differs: sha256:",
        "no module": "rank 2: no module was given for stage 2, which the plan places here [missing-stage]",
        "foreign module": "rank 2: a module was given for stage 0, which stands on rank 0 [foreign-stage]",
        "no loss": "rank 2: the last stage stands here and needs a loss_fn [missing-loss]",
        "same rank": "rank 1 is claimed by processes 1, 2 [rank-taken]",
        "no such rank": "rank 7 is not in the plan, which has ranks 0..2 [rank-range]",
        "scaling": "scale_grads differs: True on processes 0, 1; False on process 2 [settings-differ]",
        "specs": "on process 2 [spec-differs]",
    }
    assert not {name: told[name][1] for name, part in expected.items() if part not in told[name][1]}
    assert "the number of microbatches differs: 4 on processes 0, 1; 5 on process 2" in told["other plan"][1]
    assert set(told) == set(expected)


# --- steps


class Spoiled(nn.Module):
    """A stage that does something wrong in one of its forwards (numbered over all steps)."""

    def __init__(self, stage: nn.Module, at: int, spoil: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.stage = stage
        self.at = at
        self.spoil = spoil
        self.count = 0

    def forward(self, x: torch.Tensor) -> Any:
        """Return what the stage gives, or what `spoil` makes of it."""
        self.count += 1
        output = self.stage(x)
        return self.spoil(output) if self.count == self.at + 1 else output


def _raise(output: torch.Tensor) -> torch.Tensor:
    raise ValueError("no luck")


def _narrow(output: torch.Tensor) -> torch.Tensor:
    return output[:, :-1]


def _detached(output: torch.Tensor) -> torch.Tensor:
    return output.detach()


def _dict(output: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"x": output}


def _half(output: torch.Tensor) -> torch.Tensor:
    return output.float()


SPOILS: dict[str, tuple[int, Callable[[torch.Tensor], Any]]] = {
    "exception": (2, _raise),
    "shape": (MICROBATCHES + 1, _narrow),
    "dtype": (1, _half),
    "detached": (0, _detached),
    "dictionary": (1, _dict),
}
INPUTS = ("no inputs", "few inputs", "one tensor", "no targets", "many targets", "text", "loss", "body")


def spoil_all(rank: int, world_size: int, data: bytes) -> dict[str, Story | None]:
    """Run two steps with each thing that goes wrong on rank 1, or in what the first or the last rank is given."""
    plan = decode_plan(data, "plan.json")
    return {name: _spoiled_run(plan, rank, name) for name in (*SPOILS, *INPUTS)}


def _spoiled_run(plan: Plan, rank: int, name: str) -> Story | None:
    stages = stages_of(plan, rank)
    if rank == 1 and name in SPOILS:
        stages[1] = Spoiled(stages[1], *SPOILS[name])
    loss = _vector_loss if name == "loss" else squared_error
    inputs, targets = make_data("block", MICROBATCHES, 0)
    given: dict[str, tuple[Any, Any]] = {
        "no inputs": (None, targets),
        "few inputs": (inputs[1:], targets),
        "one tensor": (torch.cat(inputs), targets),
        "no targets": (inputs, None),
        "many targets": (inputs, targets + targets),
        "text": ([*inputs[1:], "x"], targets),
    }
    executor = PlanExecutor(plan, stages, loss, watchdog=PATIENT)
    try:
        with executor:
            for _ in range(2):
                executor.step(*given.get(name, (inputs, targets)))
                if name == "body" and rank == 0:
                    raise KeyError("elsewhere")
    except RuntimeFault as fault:
        return story(fault)
    except KeyError:
        return story(executor._monitor._fault or RuntimeFault("no fault"))
    return None


def _vector_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).sum(-1)


def test_errors_end_all_ranks() -> None:
    """What goes wrong on one rank is raised on all of them: the same code, rank, stage and microbatch."""
    results = run_ranks(spoil_all, NUM_RANKS, encode_plan(good_plan()))
    told = {name: the_one([found[name] for found in results]) for name in results[0]}
    expected: dict[str, tuple[str, int, int | None, int | None, str]] = {
        "exception": ("failed", 1, 1, 2, "rank 1: F of stage 1 microbatch 2 failed: ValueError: no luck"),
        "shape": ("shape-changed", 1, 1, 1, "gave (float64[2, 4, 8] with grad), but (float64[2, 5, 8] with grad)"),
        "dtype": ("shape-changed", 1, 1, 1, "gave (float32[2, 5, 8] with grad), but (float64[2, 5, 8] with grad)"),
        "detached": ("no-gradient", 1, 1, 0, "gave no output that requires a gradient"),
        "dictionary": ("stage-output", 1, 1, 1, "gave dict, expected a tensor or a flat tuple of tensors"),
        "no inputs": ("inputs-missing", 0, None, None, "rank 0: step needs inputs: the first stage stands here"),
        "few inputs": ("inputs-count", 0, None, None, "rank 0: 3 inputs, the plan has 4 microbatches"),
        "one tensor": ("inputs-type", 0, None, None, "inputs is one tensor, expected a sequence of 4 microbatches"),
        "no targets": ("targets-missing", 2, None, None, "rank 2: step needs targets: the last stage stands here"),
        "many targets": ("targets-count", 2, None, None, "rank 2: 8 targets, the plan has 4 microbatches"),
        "text": ("inputs-type", 0, 0, 3, "input of microbatch 3 is a str, expected a tensor"),
        "loss": ("loss-shape", 2, 2, 0, "the loss function gave a tensor of shape [2, 5], expected a scalar tensor"),
        "body": ("failed", 0, None, None, "KeyError: 'elsewhere'"),
    }
    for name, (code, rank, stage, mb, part) in expected.items():
        found = told[name]
        assert (found[0], *found[2:]) == (code, rank, stage, mb), (name, found)
        assert part in found[1], (name, found)
    assert set(told) == set(expected)


def lose(rank: int, world_size: int, data: bytes, how: str, who: int) -> Story | None:
    """Run steps in which rank `who` is lost in its third forward of the second step."""
    plan = decode_plan(data, "plan.json")
    stages = stages_of(plan, rank)

    def vanish(output: torch.Tensor) -> torch.Tensor:
        if how == "hang":
            time.sleep(IMPATIENT.floor_s + 2.0)
        elif how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:  # a stopped process cannot even end itself
            subprocess.Popen(["sh", "-c", f"sleep 6; kill -KILL {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        return output

    if rank == who:
        stages[who] = Spoiled(stages[who], MICROBATCHES + 2, vanish)
    watchdog = IMPATIENT if how == "hang" else replace_limits(120.0, 2.0 if how == "stop" else 120.0)
    try:
        with PlanExecutor(plan, stages, squared_error, watchdog=watchdog) as executor:
            for step in range(3):
                executor.step(*make_data("block", MICROBATCHES, step))
    except RuntimeFault as fault:
        return story(fault)
    return None


def replace_limits(floor_s: float, silence_s: float) -> Watchdog:
    """Return a watchdog that is patient with ops."""
    return Watchdog(floor_s=floor_s, first_step_s=floor_s, heartbeat_s=0.2, silence_s=silence_s)


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_killed_rank(who: int) -> None:
    """When a rank is killed in a step, the others end long before any limit on ops, and name it."""
    results = run_ranks(lose, NUM_RANKS, encode_plan(good_plan()), "kill", who, timeout=40, allow_errors=True)
    assert results.pop(who) is None
    code, message, rank, *_ = the_one(results)
    assert (code, rank) == ("peer-lost", who)
    assert f"rank {who} is gone: lost the connection of channel" in message


@pytest.mark.slow
def test_stopped_rank() -> None:
    """A rank that is there but gives no sign of life any more ends the others, who name it and its last op."""
    results = run_ranks(lose, NUM_RANKS, encode_plan(good_plan()), "stop", 1, timeout=40, allow_errors=True)
    assert results.pop(1) is None
    code, message, rank, *_ = the_one(results)
    assert (code, rank) == ("silent", 1)
    assert "rank 1 is gone: no sign of life for" in message
    assert "; last seen in step " in message


@pytest.mark.slow
def test_late_op() -> None:
    """An op far beyond its time ends the run; the message names it and tells what everybody waits for."""
    results = run_ranks(lose, NUM_RANKS, encode_plan(good_plan()), "hang", 1, timeout=40)
    code, message, *place = the_one(results)
    assert (code, place) == ("late", [1, 1, 2])
    assert "rank 1 is late: step 1, it is in F of stage 1 microbatch 2 for 2." in message
    assert "the plan expects 0.00" in message and "the limit is 2 s" in message
    assert "rank 0 waits for the gradient of stage 0 microbatch" in message
    assert "rank 2 waits for the activation of stage 2 microbatch 2 from rank 1" in message


def between(rank: int, world_size: int, data: bytes) -> Story | None:
    """Run steps; the last rank does not come back for the second one in time."""
    plan = decode_plan(data, "plan.json")
    try:
        with PlanExecutor(plan, stages_of(plan, rank), squared_error, watchdog=IMPATIENT) as executor:
            for step in range(2):
                if step == 1 and rank == 2:
                    time.sleep(IMPATIENT.between_steps_s + IMPATIENT.floor_s + 2.0)
                executor.step(*make_data("block", MICROBATCHES, step))
    except RuntimeFault as fault:
        return story(fault)
    return None


@pytest.mark.slow
def test_rank_that_does_not_come_back() -> None:
    """A rank that stays between two steps for too long ends the run."""
    code, message, rank, *_ = the_one(run_ranks(between, NUM_RANKS, encode_plan(good_plan()), timeout=40))
    assert (code, rank) == ("late", 2)
    assert "rank 2 is late: it has not begun step 1 for" in message


class SlowSgd(torch.optim.SGD):
    """An optimizer that takes its time."""

    def step(self, closure: Any = None) -> Any:
        """Step, late."""
        time.sleep(1.5)
        return super().step(closure)


def keep_store(rank: int, world_size: int, data: bytes, file: str, killed: bool) -> Story | None:
    """Run a step with a store that lives in rank 0, which is done long before rank 1, or is killed."""
    plan = decode_plan(data, "plan.json")
    place = Path(file)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        Path(f"{file}.part").write_text(str(store.port))
        Path(f"{file}.part").rename(place)
    else:
        while not place.exists():
            time.sleep(0.01)
        store = dist.TCPStore("127.0.0.1", int(place.read_text()), world_size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    stages = stages_of(plan, rank)
    if killed and rank == 0:
        stages[0] = Spoiled(stages[0], 1, lambda output: os.kill(os.getpid(), signal.SIGKILL))
    optimizer = (lambda parameters: SlowSgd(parameters, lr=0.1)) if rank == 1 else None
    watchdog = replace_limits(120.0, 120.0)
    try:
        with PlanExecutor(plan, stages, squared_error, watchdog=watchdog, optimizer=optimizer) as executor:
            executor.step(*make_data("block", MICROBATCHES, 0))
    except RuntimeFault as fault:
        return story(fault)
    return None


@pytest.mark.slow
def test_store_outlives_its_keeper(tmp_path: Path) -> None:
    """The rank in which the store lives leaves only when no other is in a step any more."""
    data = encode_plan(plan_by("1f1b", make_problem(2, MICROBATCHES)))
    assert run_ranks(keep_store, 2, data, str(tmp_path / "port"), False, backend=None) == [None, None]


def test_killed_keeper_of_the_store(tmp_path: Path) -> None:
    """When the rank in which the store lives is killed, the others end with a message that says so."""
    data = encode_plan(plan_by("1f1b", make_problem(2, MICROBATCHES)))
    port = str(tmp_path / "port")
    killed, told = run_ranks(keep_store, 2, data, port, True, backend=None, allow_errors=True)
    assert killed is None
    assert told[0] in ("peer-lost", "store-lost")
    assert "rank 0 is gone" in told[1] or "often rank 0, is gone" in told[1]


def leave(rank: int, world_size: int, data: bytes) -> tuple[Story | None, str]:
    """One process does not start an executor; afterwards a closed executor is asked for a step."""
    plan = decode_plan(data, "plan.json")
    found = None
    if rank != 1:
        try:
            PlanExecutor(plan, stages_of(plan, rank), squared_error, watchdog=Watchdog(startup_s=1.0))
        except RuntimeFault as fault:
            found = story(fault)
    return found, " ".join(thread.name for thread in threading.enumerate() if thread.name.startswith("cpipe"))


def test_process_that_does_not_start() -> None:
    """Ranks do not wait for ever for one that does not start; they name it, and leave no thread behind."""
    results = run_ranks(leave, NUM_RANKS, encode_plan(good_plan()))
    code, message, *_ = the_one([results[0][0], results[2][0]])
    assert code == "start-up"
    assert "process 1 of the default process group did not start an executor within 1 s" in message
    assert [threads for _, threads in results] == ["", "", ""]


def test_without_a_process_group() -> None:
    """Without a process group there is a message that says what to call."""
    plan = plan_by("1f1b", make_problem(1, 1))
    with pytest.raises(RuntimeFault, match=r"call torch.distributed.init_process_group first \[not-initialized\]"):
        PlanExecutor(plan, {0: make_stage("block", 0, 1)}, squared_error)
