"""Tests of cpipe.runtime.torch_schedule: exported tables run in torch's own runtime, its own schedules come in.

Each launch runs many tables on the same processes, each for two steps of training. Gradients and losses of both are
compared with those of one process that runs the stages one after the other, in double precision.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import ROOT
from helpers import assert_plan_ok
from runtime_workers import run_ranks
from shapes import placed
from torch_tables import as_profile, import_text, job_document

from cpipe.compiler import SolveOptions, compile_profile
from cpipe.errors import UsageError
from cpipe.ir import Plan
from cpipe.plan import validate
from cpipe.plan.exchange import LAYOUTS, torch_csv, torch_faults

torch = pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

from cpipe.runtime.torch_schedule import TorchSchedule, torch_schedule_table  # noqa: E402

WIDTH = 6
ROWS = 3  # of a microbatch
STEPS = 2
RATE = 0.5  # so that the second step is another one
CASES = tuple(sorted(path.parent.name for path in (ROOT / "plans").glob("*/profile.json")))


class Table(NamedTuple):
    """A table to run: stage s stands on rank ``placement[s]``."""

    text: str
    layout: str
    placement: tuple[int, ...]
    microbatches: int


def block(stage: int) -> Any:
    """Return the module of a stage; the same in every process."""
    generator = torch.Generator().manual_seed(stage)
    layer = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return torch.nn.Sequential(layer, torch.nn.Tanh())


def batch(microbatches: int, seed: int) -> Any:
    """Return the rows of all microbatches."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(microbatches * ROWS, WIDTH, generator=generator, dtype=torch.float64)


def update(modules: dict[int, Any]) -> dict[int, list[Any]]:
    """Return the gradients of each stage, after a step down along them; none are left."""
    taken = {stage: [parameter.grad for parameter in module.parameters()] for stage, module in modules.items()}
    with torch.no_grad():
        for module in modules.values():
            for parameter in module.parameters():
                parameter -= RATE * parameter.grad
                parameter.grad = None
    return taken


def train(modules: dict[int, Any], step: Callable[[int], list[float]]) -> tuple[dict[int, list[Any]], list[float]]:
    """Train for `STEPS` steps, `step` running one of them on a batch; return the gradients and losses of all."""
    gradients: dict[int, list[Any]] = {stage: [] for stage in modules}
    losses = []
    for number in range(STEPS):
        losses += step(number)
        for stage, taken in update(modules).items():
            gradients[stage] += taken
    return gradients, losses


def run_tables(rank: int, world_size: int, tables: list[Table]) -> list[tuple[dict[int, list[Any]], list[float]]]:
    """Run each table for `STEPS` steps; return gradients and losses of this rank."""
    outcomes = []
    for table in tables:
        placement, n = table.placement, table.microbatches
        modules = {stage: block(stage) for stage, home in enumerate(placement) if home == rank}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "table.csv")
            file.write_text(table.text, encoding="utf-8")
            schedule = TorchSchedule(
                file,
                modules,
                num_stages=len(placement),
                microbatches=n,
                loss_fn=torch.nn.functional.mse_loss,
                layout=table.layout,
                example=torch.empty(ROWS, WIDTH, dtype=torch.float64),
            )
        if table.layout == "compute_comms":
            assert ",".join(schedule.rows[rank]) == table.text.splitlines()[rank]
        outcomes.append(train(modules, partial(one_step, schedule, n, placement[0] == rank, placement[-1] == rank)))
    return outcomes


def one_step(schedule: TorchSchedule, microbatches: int, first: bool, last: bool, number: int) -> list[float]:
    """Run a step in torch; return the losses that this rank has."""
    losses = schedule.step(
        batch(microbatches, 2 * number) if first else None, batch(microbatches, 2 * number + 1) if last else None
    )
    return [float(loss.detach()) for loss in losses]


@cache
def alone(num_stages: int, microbatches: int) -> tuple[dict[int, list[Any]], list[float]]:
    """Return gradients and losses of one process."""
    modules = {stage: block(stage) for stage in range(num_stages)}

    def step(number: int) -> list[float]:
        losses = []
        for inputs, targets in zip(
            *(batch(microbatches, 2 * number + side).chunk(microbatches) for side in (0, 1)), strict=True
        ):
            for module in modules.values():
                inputs = module(inputs)
            losses.append(torch.nn.functional.mse_loss(inputs, targets))
        (torch.stack(losses).sum() / microbatches).backward()
        return [float(loss.detach()) for loss in losses]

    return train(modules, step)


def errors(tables: list[Table], num_ranks: int) -> list[float]:
    """Run tables in one launch; return of each the largest error of a gradient or loss, relative to the largest one."""
    outcomes = run_ranks(run_tables, num_ranks, tables, timeout=60)
    found = []
    for index, table in enumerate(tables):
        expected, losses = alone(len(table.placement), table.microbatches)
        pairs = [(torch.tensor(outcomes[table.placement[-1]][index][1]), torch.tensor(losses))]
        for rank in range(num_ranks):
            for stage, grads in outcomes[rank][index][0].items():
                pairs += zip(grads, expected[stage], strict=True)
        found.append(max(float((got - want).abs().max() / want.abs().max()) for got, want in pairs))
    return found


def table_of(plan: Plan, layout: str) -> Table:
    """Return the exported table of a plan."""
    assert torch_faults(plan, layout=layout) == ()
    return Table(torch_csv(plan, layout=layout), layout, plan.problem.placement, plan.problem.microbatches)


def small_case(name: str) -> dict[str, Any]:
    """Return a shipped profile cut to its first and its last two devices, with six microbatches."""
    document: dict[str, Any] = json.loads((ROOT / "plans" / name / "profile.json").read_text(encoding="utf-8"))
    kept = [*document["devices"][:2], *document["devices"][-2:]]
    names = {device["id"] for device in kept}
    stages = [stage for stage in document["stages"] if stage["device"] in names]
    links = [
        link
        for link in document.get("links", ())
        if "between" in link or {link["from"], link["to"]} <= names | {device.get("site") for device in kept}
    ]
    return document | {"devices": kept, "stages": stages, "links": links, "microbatches": 6}


@pytest.mark.slow
def test_plans_of_shipped_kinds_run_in_torch() -> None:
    """A plan for a small job of each shipped kind, in both layouts, gives a single process's gradients under torch."""
    tables = []
    for name in CASES:
        compiled = compile_profile(as_profile(small_case(name)), SolveOptions(method="greedy"))
        assert_plan_ok(compiled.plan, compiled.problem)
        tables += [table_of(compiled.plan, layout) for layout in LAYOUTS]
    assert max(errors(tables, 4)) < 1e-9
    assert any("I" in table.text for table in tables), "no plan splits its backwards"


def test_plans_with_local_hand_over_run_in_torch() -> None:
    """D9, A10: plans whose neighbours share a rank, loops and mixed backwards run on two ranks over gloo."""
    tables = []
    for placement, rows in (
        ((0, 1, 1, 0), ("0F{0} 3F{0} 3D{0} 3W{0} 0B{0}", "1F{0} 2F{0} 2B{0} 1D{0} 1W{0}")),
        ((0, 1, 0, 1), ("0F{0} 2F{0} 2B{0} 0D{0} 0W{0}", "1F{0} 3F{0} 3D{0} 3W{0} 1B{0}")),
        ((0, 0, 1), ("0F{0} 1F{0} 1D{0} 0D{0} 1W{0} 0W{0}", "2F{0} 2B{0}")),
    ):
        cells = "\n".join(" ".join(row.format(mb) for mb in range(4)) for row in rows)
        text = cells.replace(" ", ",").replace("D", "I") + "\n"
        plan, found = import_text(text, job_document(2, len(placement), 4))
        assert found == ()
        assert plan.problem.placement == placement
        tables += [table_of(plan, layout) for layout in LAYOUTS]
    assert max(errors(tables, 2)) < 1e-9


@pytest.mark.slow
def test_static_schedules_run_in_torch() -> None:
    """Split backwards, loops, V and fused pairs run on two ranks over gloo, in both layouts, with equal gradients."""
    tables = []
    for kind, chunks, names in (
        ("line", 1, ("1f1b", "zb-h1")),
        ("loop", 2, ("interleaved-1f1b", "interleaved-zb")),
        ("wave", 2, ("zb-v", "dualpipe-v", "hanayo")),
    ):
        document = job_document(2, 2 * chunks, 5)
        for stage, device in enumerate(placed(kind, 2, chunks)):
            document["stages"][stage]["device"] = f"g{device}"
        for name in names:
            compiled = compile_profile(as_profile(document), SolveOptions(method=name))
            assert_plan_ok(compiled.plan, compiled.problem)
            tables += [
                table_of(compiled.plan, layout)
                for layout in LAYOUTS
                if layout == "compute_only" or not torch_faults(compiled.plan, layout=layout)
            ]
    assert sum(table.layout == "compute_comms" for table in tables) >= 4
    assert any("OVERLAP_F_B" in table.text for table in tables)
    assert max(errors(tables, 2)) < 1e-9


TORCH_SCHEDULES = [
    ("GPipe", 4, 8, 1),
    ("Interleaved1F1B", 4, 8, 2),
    ("InterleavedZeroBubble", 2, 4, 2),
    ("InterleavedZeroBubble", 4, 8, 2),
    ("ZBVZeroBubble", 2, 4, 2),
    ("ZBVZeroBubble", 4, 8, 2),
    ("DualPipeV", 4, 8, 2),
]


@pytest.mark.parametrize(("name", "num_ranks", "microbatches", "per_rank"), TORCH_SCHEDULES)
def test_torch_schedules_come_in(name: str, num_ranks: int, microbatches: int, per_rank: int) -> None:
    """Torch's own schedules, as orders and with the messages that it places, are valid plans with times."""
    job = job_document(num_ranks, num_ranks * per_rank, microbatches)
    for with_messages in (False, True)[: 1 if per_rank == 1 else 2]:
        text = torch_schedule_table(
            name, num_ranks, microbatches, stages_per_rank=per_rank, with_messages=with_messages
        )
        plan, found = import_text(text, job)
        assert found == ()
        assert validate(plan) == ()
        assert plan.claims.makespan_ns >= plan.claims.lower_bound_ns > 0
        assert not with_messages or plan.claims.transports == (
            "channels",
            "gloo",
            "nccl-pair",
            "nccl-rank",
            "nccl-dir2",
        )


@pytest.mark.parametrize(
    ("name", "num_ranks", "microbatches"),
    [("InterleavedZeroBubble", 2, 4), ("ZBVZeroBubble", 2, 4), ("ZBVZeroBubble", 4, 8), ("DualPipeV", 4, 8)],
)
def test_late_receives_of_torch_are_swapped(name: str, num_ranks: int, microbatches: int) -> None:
    """Torch's late placement of receives (`defer_pp_recv`) matches activations with gradients: reported as swapped."""
    text = torch_schedule_table(name, num_ranks, microbatches, with_messages=True, defer_receives=True)
    _, found = import_text(text, job_document(num_ranks, 2 * num_ranks, microbatches))
    assert {fault.code for fault in found} == {"swapped"}


def test_swapped_tables_are_wrong_in_torch() -> None:
    """What is reported as swapped computes wrong gradients in torch, without an error; other placements are right."""
    job = job_document(2, 4, 4)
    tables = []
    for late in (False, True):
        text = torch_schedule_table("ZBVZeroBubble", 2, 4, with_messages=True, defer_receives=late)
        tables.append(Table(text, "compute_comms", (0, 1, 1, 0), 4))
    plan, found = import_text(torch_schedule_table("ZBVZeroBubble", 2, 4), job)
    assert found == ()
    tables.append(table_of(plan, "compute_only"))
    right, wrong, ours = errors(tables, 2)
    assert max(right, ours) < 1e-9
    assert wrong > 0.01


def test_torch_1f1b_order_is_off_by_one() -> None:
    """Torch 2.13 describes the last rank of its 1F1B with F1..Fn for F0..Fn-1; the import says so."""
    _, found = import_text(torch_schedule_table("1F1B", 4, 8), job_document(4, 4, 8))
    assert [(fault.code, fault.message) for fault in found] == [
        (
            "torch-1f1b",
            "rank 3: 3F1: F1..F8 with B0..B7: so torch 2.13 describes the last rank of its 1F1B, which runs F0..F7",
        ),
        ("missing-op", "rank 3: F of stage 3 mb 0 is missing"),
        ("mb-range", "rank 3: F of stage 3 mb 8: microbatches are 0..7"),
    ]


def test_reversed_backwards_are_outside_the_model() -> None:
    """Torch's LoopedBFS runs backwards in falling order of microbatches, which no plan may: every one is reported."""
    _, found = import_text(torch_schedule_table("LoopedBFS", 2, 4), job_document(2, 4, 4))
    assert {fault.code for fault in found} == {"mb-order"}


def test_other_versions_of_torch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The underscored names are those of the torch versions tested; another one is refused rather than misread."""
    monkeypatch.setattr(torch, "__version__", "2.15.0")
    with pytest.raises(
        UsageError, match=r"this reads internals of torch 2\.13 and 2\.14, found torch 2\.15\.0 \[torch-version\]"
    ):
        torch_schedule_table("GPipe", 2, 2)
