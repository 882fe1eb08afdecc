"""Before the first step: every process says what it is about to run, and all of them refuse if anything differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from cpipe.errors import Diagnostic
from cpipe.ir import Plan
from cpipe.ir.base import Frozen
from cpipe.plan import validate
from cpipe.runtime.bulletin import Bulletin
from cpipe.runtime.faults import RuntimeFault
from cpipe.runtime.specs import decode_spec

__all__ = ["Card", "Crew", "local_faults", "meet", "weights_sum"]

_MOST_FAULTS = 8
_PIECE = 1 << 20  # bytes of weights summed at once
_PRIME = 1_000_003


class Card(Frozen, frozen=True, kw_only=True):
    """What one process is about to run.

    Attributes
    ----------
    rank
        Its pipeline rank.
    pipeline, replicas
        Processes (ranks of the default group) of its pipeline, and of its data-parallel group (empty without one).
    plan, microbatches, scale_grads, emulates
        Must be equal everywhere.
    specs
        Declared outputs by stage, in text form.
    weights
        A number for the weights of each stage; equal on all replicas.
    faults
        What this process found wrong by itself.
    """

    rank: int
    pipeline: tuple[int, ...]
    replicas: tuple[int, ...] = ()
    plan: str = ""
    microbatches: int = 0
    scale_grads: bool = True
    emulates: bool = False
    specs: dict[str, str] = msgspec.field(default_factory=dict)
    weights: dict[str, str] = msgspec.field(default_factory=dict)
    faults: tuple[Diagnostic, ...] = ()


class Crew:
    """Who runs what, after all have met.

    Attributes
    ----------
    pipelines
        Per replica: the process of each pipeline rank.
    names
        What to call each process: its rank, with its replica where there are several.
    ranks
        Pipeline rank of each process.
    specs
        What stages send, as far as anybody declared it.
    """

    def __init__(self, cards: Sequence[Card]) -> None:
        by_pipeline: dict[tuple[int, ...], dict[int, int]] = {}
        for process, card in enumerate(cards):
            by_pipeline.setdefault(tuple(sorted(card.pipeline)), {})[card.rank] = process
        self.pipelines = [
            [ranks[rank] for rank in sorted(ranks)]
            for _, ranks in sorted(by_pipeline.items(), key=lambda item: item[0])
        ]
        declared = {int(stage): spec for card in cards for stage, spec in card.specs.items()}
        self.specs = {stage: decode_spec(spec) for stage, spec in sorted(declared.items())}
        self.ranks = [card.rank for card in cards]
        self.names = [""] * len(cards)
        for replica, pipeline in enumerate(self.pipelines):
            for process in pipeline:
                prefix = f"replica {replica} " if len(self.pipelines) > 1 else ""
                self.names[process] = f"{prefix}rank {cards[process].rank}"


def local_faults(plan: Plan, rank: int, stages: Mapping[int, Any], has_loss: bool) -> tuple[Diagnostic, ...]:
    """Check what needs nobody else: the plan by itself, and that this process has what its rank must run."""
    invalid = [fault for fault in validate(plan) if fault.severity == "error"]
    if invalid:
        first = {fault.code: fault for fault in reversed(invalid)}  # one of each kind tells more than many of one
        shown = sorted(first.values(), key=invalid.index)[:_MOST_FAULTS]
        told = "; ".join(f"{fault.message} [{fault.code}]" for fault in shown)
        more = f"; and {len(invalid) - len(shown)} more" if len(invalid) > len(shown) else ""
        return (_fault("invalid-plan", f"the plan is not valid: {told}{more}"),)
    summary = plan.problem
    if not 0 <= rank < summary.devices:
        return (_fault("rank-range", f"rank {rank} is not in the plan, which has ranks 0..{summary.devices - 1}"),)
    here = [stage for stage, device in enumerate(summary.placement) if device == rank]
    faults = [
        _fault("missing-stage", f"rank {rank}: no module was given for stage {stage}, which the plan places here")
        for stage in here
        if stage not in stages
    ]
    for stage in sorted(set(stages) - set(here)):
        known = 0 <= stage < summary.stages
        place = f"stands on rank {summary.placement[stage]}" if known else "is not in the plan"
        faults.append(_fault("foreign-stage", f"rank {rank}: a module was given for stage {stage}, which {place}"))
    faults += [
        _fault("stage-type", f"rank {rank}: stage {stage} is a {type(stages[stage]).__name__}, expected a module")
        for stage in here
        if stage in stages and not isinstance(stages[stage], nn.Module)
    ]
    faults += _shared_parameters(plan, rank, {stage: stages[stage] for stage in here if stage in stages})
    if any(map(summary.is_last, here)) and not has_loss:
        faults.append(_fault("missing-loss", f"rank {rank}: the last stage stands here and needs a loss_fn"))
    return tuple(faults)


def _shared_parameters(plan: Plan, rank: int, stages: Mapping[int, Any]) -> list[Diagnostic]:
    """Stages that share a parameter cannot each reduce or shard it."""
    owners: dict[int, int] = {}
    faults = []
    for stage, module in stages.items() if plan.groups else ():
        for name, parameter in module.named_parameters() if isinstance(module, nn.Module) else ():
            owner = owners.setdefault(id(parameter), stage)
            if owner != stage:
                message = f"rank {rank}: stages {owner} and {stage} share the parameter {name!r}"
                faults.append(_fault("shared-parameter", f"{message}, which a data-parallel plan would reduce twice"))
    return faults


def weights_sum(module: nn.Module) -> str:
    """Return a checksum of a module's trainable weights: over their bits, so that no rounding depends on a machine."""
    total = 0
    for parameter in module.parameters():
        if parameter.requires_grad:
            plain = torch.view_as_real(parameter) if parameter.is_complex() else parameter
            for piece in plain.detach().contiguous().reshape(-1).view(torch.uint8).split(_PIECE):  # type: ignore[no-untyped-call]
                places = torch.arange(1, piece.numel() + 1, dtype=torch.int64, device=piece.device)
                total = (total * _PRIME + int((piece.to(torch.int64) * places).sum())) % (1 << 64)
    return f"{total:016x}"


def meet(bulletin: Bulletin, card: Card, plan: Plan, limit_s: float) -> Crew:
    """Exchange cards with all processes of the default group and compare them.

    Raises
    ------
    RuntimeFault
        With everything that is wrong or differs; the same on all processes that met.
    """
    notes = bulletin.exchange("card", msgspec.json.encode(card).decode(), limit_s)
    absent = [process for process, note in enumerate(notes) if note is None]
    if absent:
        message = f"{_places(absent)} of the default process group did not start an executor within"
        hint = "every process of the default group makes its executors, in the same order"
        raise RuntimeFault(f"{message} {limit_s:g} s", code="start-up", hint=hint)
    cards = [msgspec.json.decode(note, type=Card) for note in notes if note is not None]
    faults = list(dict.fromkeys(fault for other in cards for fault in other.faults))
    faults += _compared(cards)
    if not faults:
        faults += _placed(cards, plan)
    if not faults:
        crew = Crew(cards)
        faults += _replicated(cards, plan, crew)
        if not faults:
            return crew
    raise RuntimeFault(faults)


def _compared(cards: Sequence[Card]) -> list[Diagnostic]:
    """Everything that must be the same on all processes."""
    faults = []
    common: tuple[tuple[str, str, Callable[[Card], Any]], ...] = (
        ("plan-differs", "the plan (its digest)", lambda card: card.plan),
        ("microbatches-differ", "the number of microbatches", lambda card: card.microbatches),
        ("settings-differ", "scale_grads", lambda card: card.scale_grads),
        ("settings-differ", "emulation (given or not)", lambda card: card.emulates),
    )
    for code, what, read in common:
        faults += _differing(code, what, enumerate(cards), read)
    for stage in sorted({stage for card in cards for stage in card.specs}, key=int):
        declared = [(process, card) for process, card in enumerate(cards) if stage in card.specs]
        faults += _differing(
            "spec-differs", f"what stage {stage} sends", declared, lambda card, at=stage: card.specs[at]
        )
    return faults


def _differing(code: str, what: str, cards: Iterable[tuple[int, Any]], read: Callable[..., Any]) -> list[Diagnostic]:
    values: dict[Any, list[int]] = {}
    for process, card in cards:
        values.setdefault(read(card), []).append(process)
    if len(values) < 2:
        return []
    told = "; ".join(f"{value} on {_places(processes)}" for value, processes in values.items())
    return [_fault(code, f"{what} differs: {told}")]


def _placed(cards: Sequence[Card], plan: Plan) -> list[Diagnostic]:
    """Every pipeline has each rank of the plan once."""
    faults = []
    for pipeline in sorted({tuple(sorted(card.pipeline)) for card in cards}):
        if len(pipeline) != plan.problem.devices:
            message = (
                f"a pipeline has {len(pipeline)} processes ({_listed(pipeline)}), the plan {plan.problem.devices} ranks"
            )
            faults.append(_fault("group-size", message))
            continue
        claims: dict[int, list[int]] = {}
        for process in pipeline:
            claims.setdefault(cards[process].rank, []).append(process)
            if tuple(sorted(cards[process].pipeline)) != pipeline:
                faults.append(_fault("group-differs", f"process {process} is in two pipelines"))
        for rank, processes in sorted(claims.items()):
            if len(processes) > 1:
                faults.append(_fault("rank-taken", f"rank {rank} is claimed by {_places(processes)}"))
    return faults


def _replicated(cards: Sequence[Card], plan: Plan, crew: Crew) -> list[Diagnostic]:
    """Data-parallel groups join the processes of one rank, one of each pipeline, with equal weights."""
    replicas = len(crew.pipelines)
    if not plan.groups:
        if replicas > 1 or any(len(card.replicas) > 1 for card in cards):
            message = "there are replicas, but the plan has no data parallelism: they would drift apart"
            return [_fault("data-parallel", message)]
        return []
    faults = []
    for process, card in enumerate(cards):
        expected = tuple(sorted(pipeline[card.rank] for pipeline in crew.pipelines))
        if not card.replicas and replicas == 1:
            continue  # a group of one is made for it
        if not card.replicas:
            message = "the plan has data parallelism, but no data_parallel_group was given"
            faults.append(_fault("data-parallel", f"{crew.names[process]}: {message}"))
        elif tuple(sorted(card.replicas)) != expected:
            message = f"its data-parallel group joins processes {_listed(card.replicas)}, expected {_listed(expected)}"
            faults.append(_fault("data-parallel", f"{crew.names[process]}: {message}"))
    placement, length = plan.problem.placement, plan.problem.flow_length
    for stage in range(length):
        copies = range(stage, plan.problem.stages, length)
        group = [
            (pipeline[placement[copy]], cards[pipeline[placement[copy]]].weights.get(str(copy)))
            for pipeline in crew.pipelines
            for copy in copies
        ]
        told = f"the copies of stage {stage}" if len(copies) > 1 else f"stage {stage}"
        what = f"the weights of {told} (a checksum of their bits)"
        faults += _differing("weights-differ", what, group, lambda weights: weights)
    return faults


def _fault(code: str, message: str) -> Diagnostic:
    return Diagnostic(code=code, message=message)


def _places(processes: Sequence[int]) -> str:
    return f"process{'es' * (len(processes) > 1)} {_listed(processes)}"


def _listed(processes: Iterable[int]) -> str:
    return ", ".join(map(str, processes))
