"""Stages for tests of the runtime, plans to run them with, and what a single process computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from helpers import assert_plan_ok, plan_of
from sample_plans import make_problem
from torch import Tensor, nn
from torch.nn import functional

from cpipe.ir import Plan, Problem, Schedule
from cpipe.plan import decode_plan, encode_plan
from cpipe.runtime import PlanExecutor, Watchdog
from cpipe.solve import SolveLimits, solve

__all__ = [
    "IMPATIENT",
    "PATIENT",
    "Block",
    "Case",
    "Outcome",
    "case_of",
    "make_data",
    "make_stage",
    "mixed_schedule",
    "optimizer_of",
    "plan_by",
    "reference",
    "run_cases",
    "squared_error",
]

IMPATIENT = Watchdog(
    floor_s=2.0, first_step_s=20.0, startup_s=20.0, between_steps_s=1.0, heartbeat_s=0.2, silence_s=5.0
)
PATIENT = Watchdog(floor_s=40.0, first_step_s=40.0, startup_s=40.0, silence_s=40.0)

_WIDTHS = (6, 10, 8, 12, 4, 8)
_LENGTH = 5


class Block(nn.Module):
    """A transformer block: layer norm, causal attention, GELU, residuals."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`: [batch, length, width]."""
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.qkv(self.norm_1(x)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        update: Tensor = self.down(functional.gelu(self.up(self.norm_2(x))))
        return x + update


class Uneven(nn.Module):
    """A stage with its own width, a tied weight and four outputs.

    They are: not contiguous; int64, passed along; a residual that every other stage leaves unused; bool.
    """

    def __init__(self, stage: int, num_stages: int) -> None:
        super().__init__()
        self.last = stage == num_stages - 1
        self.uses_residual = stage % 2 == 0
        width, wider = _WIDTHS[stage], _WIDTHS[stage + 1]
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, wider)
        self.residual = nn.Linear(width, wider)

    def forward(
        self, x: Tensor, positions: Tensor, residual: Tensor | None = None, odd: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Return what the next stage takes, or of the last stage one tensor."""
        if odd is not None and residual is not None:
            assert odd.dtype == torch.bool and torch.equal(odd, positions % 2 == 1)
            x = x + residual if self.uses_residual else x
        x = torch.tanh(self.inner(torch.tanh(self.inner(x))))
        y = self.outer(x) + positions.unsqueeze(-1).to(x.dtype)
        y = y.transpose(0, 1).contiguous().transpose(0, 1)
        return y.sum(-1) if self.last else (y, positions + 1, self.residual(x), (positions + 1) % 2 == 1)


def make_stage(model: str, stage: int, num_stages: int) -> nn.Module:
    """Return a stage in float64, the same wherever it is made; `model` is ``block`` or ``uneven``."""
    torch.manual_seed(1000 + stage)
    module: nn.Module = Block() if model == "block" else Uneven(stage, num_stages)
    return module.double()


def make_data(model: str, microbatches: int, step: int) -> tuple[list[Any], list[Any]]:
    """Return inputs and targets of one step."""
    generator = torch.Generator().manual_seed(step)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if model == "block":
        return [draw(2, _LENGTH, 8) for _ in range(microbatches)], [draw(2, _LENGTH, 8) for _ in range(microbatches)]
    positions = torch.arange(2 * _LENGTH).view(2, _LENGTH)
    inputs = [(draw(2, _LENGTH, _WIDTHS[0]), positions + mb) for mb in range(microbatches)]
    return inputs, [draw(2, _LENGTH) for _ in range(microbatches)]


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error."""
    return functional.mse_loss(output, target)


def plan_by(method: str, problem: Problem) -> Plan:
    """Return the plan of a method for a problem, checked."""
    result = solve(problem, method, SolveLimits(node_limit=20))
    plan = plan_of(problem, result.schedule)
    assert_plan_ok(plan, problem)
    return plan


class Case(NamedTuple):
    """One run: a plan as bytes, a model, and how it is run.

    `adam` steps the stages with Adam, `decay` also shrinks weights that have a gradient; without `adam` gradients
    are kept and compared after the only step. The stages in `frozen` do not train.
    """

    plan: bytes
    model: str = "block"
    steps: int = 1
    adam: bool = False
    decay: bool = False
    frozen: tuple[int, ...] = ()
    record: bool = False


class Outcome(NamedTuple):
    """What one rank has after a run: gradients or weights by stage, losses of each step, buffers by channel."""

    tensors: dict[int, list[Tensor | None]]
    losses: list[dict[int, Tensor]]
    buffers: dict[int, int]
    records: list[Any]


def case_of(method: str, *sizes: int, placement: Sequence[int] = (), **options: Any) -> Case:
    """Return a case for `sizes` = (devices, microbatches) and a placement."""
    problem = make_problem(*sizes, placement=tuple(placement), latency_ms=options.pop("latency_ms", 0))
    return Case(encode_plan(plan_by(method, problem)), **options)


def run_cases(rank: int, world_size: int, cases: Iterable[Case]) -> list[Outcome]:
    """Run cases one after another on this rank; a worker for `run_ranks`."""
    return [_run_case(rank, case) for case in cases]


def _run_case(rank: int, case: Case) -> Outcome:
    plan = decode_plan(case.plan, "plan.json")
    stages = {
        stage: make_stage(case.model, stage, plan.problem.stages).requires_grad_(stage not in case.frozen)
        for stage, device in enumerate(plan.problem.placement)
        if device == rank
    }
    losses, records = [], []
    with PlanExecutor(
        plan, stages, squared_error, optimizer=optimizer_of(case), watchdog=PATIENT, record=case.record
    ) as executor:
        for step in range(case.steps):
            result = executor.step(*make_data(case.model, plan.problem.microbatches, step))
            losses.append(result.losses)
            records.append(result.records)
        buffers = {number: port.num_buffers for number, port in executor._wires.inputs.items()}
    return Outcome({stage: _kept(module, case) for stage, module in stages.items()}, losses, buffers, records)


def _kept(module: nn.Module, case: Case) -> list[Tensor | None]:
    return [parameter.detach() if case.adam else parameter.grad for parameter in module.parameters()]


def optimizer_of(case: Case) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None:
    """Return what makes the optimizers of a case."""

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(list(parameters), lr=0.01, weight_decay=0.1 if case.decay else 0.0)

    return make if case.adam else None


def reference(case: Case, replicas: int = 1) -> tuple[dict[int, list[Tensor | None]], list[list[Tensor]]]:
    """Compute a case in this process: gradients or weights by stage, losses by step and microbatch.

    The whole model runs as one, without a plan but for the order in which each stage adds up its microbatches. With
    several replicas each has its own data (steps are numbered through) and gradients are averaged.
    """
    plan = decode_plan(case.plan, "plan.json")
    num_stages = plan.problem.stages
    modules = [
        make_stage(case.model, stage, num_stages).requires_grad_(stage not in case.frozen)
        for stage in range(num_stages)
    ]
    make = optimizer_of(case)
    optimizers = [make(module.parameters()) for module in modules] if make is not None else []
    losses = []
    for step in range(case.steps):
        sums = []
        for replica in range(replicas):
            data = make_data(case.model, plan.problem.microbatches, step + 100 * replica)
            found, grads = _backward_all(modules, *data)
            losses.append(found)
            sums.append([_added(grads, stage, order) for stage, order in enumerate(_orders(plan))])
        for stage, module in enumerate(modules):
            for index, parameter in enumerate(module.parameters()):
                parts = [grad for total in sums if (grad := total[stage][index]) is not None]
                total = None if not parts else torch.stack(parts).sum(0) / replicas if replicas > 1 else parts[0]
                parameter.grad = total
        for optimizer in optimizers:
            optimizer.step()
    return {stage: _kept(module, case) for stage, module in enumerate(modules)}, losses


def _backward_all(
    modules: Sequence[nn.Module], inputs: Sequence[Any], targets: Sequence[Any]
) -> tuple[list[Tensor], list[list[list[Tensor | None]]]]:
    """Return the loss of each microbatch, and its gradients by stage and parameter."""
    losses, grads = [], []
    for data, target in zip(inputs, targets, strict=True):
        for module in modules:
            module.zero_grad()
            data = module(*data) if isinstance(data, tuple) else module(data)
            if isinstance(data, tuple):
                data = tuple(tensor if tensor.dtype == torch.bool else _dense(tensor) for tensor in data)
        loss = squared_error(data, target)
        torch.autograd.backward(loss / len(inputs))
        losses.append(loss.detach())
        grads.append([[parameter.grad for parameter in module.parameters()] for module in modules])
    return losses, grads


class Dense(torch.autograd.Function):
    """A border between stages: what crosses it, either way, is contiguous."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor.contiguous()

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        """Return the gradient."""
        return grad.contiguous()


def _dense(tensor: Tensor) -> Tensor:
    crossed: Tensor = Dense.apply(tensor)  # type: ignore[no-untyped-call]
    return crossed


def _added(grads: list[list[list[Tensor | None]]], stage: int, order: Sequence[int]) -> list[Tensor | None]:
    """Return the sum of a stage's gradients, microbatch by microbatch in `order`."""
    totals: list[Tensor | None] = []
    for index in range(len(grads[0][stage])):
        total: Tensor | None = None
        for mb in order:
            grad = grads[mb][stage][index]
            if grad is not None:
                total = grad.clone() if total is None else total + grad
        totals.append(total)
    return totals


def _orders(plan: Plan) -> list[list[int]]:
    """Return the microbatches of each stage in the order in which its weight gradients are made."""
    orders: list[list[int]] = [[] for _ in range(plan.problem.stages)]
    for program in plan.ranks:
        for step in program.ops:
            if step.op in ("W", "B") and step.stage is not None and step.mb is not None:
                orders[step.stage].append(step.mb)
    return orders


def mixed_schedule(schedule: Schedule) -> Schedule:
    """Return a schedule of whole backwards with every other one split into D and a later W."""
    orders = []
    for order in schedule.orders:
        ops: list[int] = []
        late: list[int] = []
        for op in order:
            if op % 4 == 3 and op // 4 % 2:
                ops.append(op - 2)  # B -> D; W follows behind the next op
                late.append(op - 1)
                continue
            ops.append(op)
            if late and op % 4 != 3:
                ops.append(late.pop(0))
        orders.append((*ops, *late))
    return Schedule(orders=tuple(orders))
