"""``python -m cpipe.runtime.profile_worker``: one rank of a measurement, of stages and then of links.

Stages are measured in flow order, each on the rank that would hold it, while the other ranks wait; the output of one is
the input of the next. Rank 0 writes what was measured as one JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cpipe.errors import UsageError
from cpipe.runtime.failure import exits_are_failures, reported
from cpipe.runtime.measure import measure_links
from cpipe.runtime.models import Job, PipelineModel, load_factory
from cpipe.runtime.profiler import StageCosts, Values, measure_stage
from cpipe.runtime.specs import as_tensors
from cpipe.runtime.worker import World, join_world

__all__ = ["ProfileOptions", "main", "measure_job"]


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What to measure: the stages of `model`, stage k on rank k mod the number of ranks; the seed is the model's."""

    model: str
    num_stages: int
    microbatches: int
    repeats: int
    seed: int = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as one rank; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cpipe.runtime.profile_worker", description="Measure a model.")
    parser.add_argument("--model", required=True, help="transformer or MODULE:FACTORY")
    parser.add_argument("--stages", type=int, required=True)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, help="write the result here instead of to stdout")
    options = parser.parse_args(arguments)
    result = measure_job(
        ProfileOptions(
            model=options.model,
            num_stages=options.stages,
            microbatches=options.microbatches,
            repeats=options.repeats,
            seed=options.seed,
        )
    )
    if result is not None:
        text = json.dumps(result) + "\n"
        if options.result is None:
            sys.stdout.write(text)
        else:
            options.result.write_text(text, encoding="utf-8")
    return 0


def measure_job(options: ProfileOptions) -> dict[str, Any] | None:
    """Measure all stages and links as one rank of a world that this call joins and leaves.

    Returns
    -------
    dict or None
        On rank 0, plain enough for JSON: ``stages``, one `StageCosts` a stage; ``links``, one `LinkFit` a pair of
        ranks that exchange messages; ``memory_bytes``, of each rank's device, null for no limit known.

    Raises
    ------
    UsageError
        When there is no such model, or it does not fit the number of stages.
    NoSolutionError
        When the model's code exits.
    """
    world = join_world()
    try:
        with exits_are_failures(world.rank):
            return _measure(options, world)
    finally:
        dist.destroy_process_group()


def _measure(options: ProfileOptions, world: World) -> dict[str, Any] | None:
    """Measure as one rank of a world; see `measure_job`."""
    factory = load_factory(options.model)
    model = factory(Job(num_stages=options.num_stages, microbatches=options.microbatches, seed=options.seed, plan=None))
    stages = _measure_stages(model, options, world)
    homes = [stage % world.size for stage in range(options.num_stages)]
    pairs = sorted({(min(ends), max(ends)) for ends in pairwise(homes) if ends[0] != ends[1]})
    links = measure_links(pairs, repeats=options.repeats, device=world.device)
    told: list[Any] = [None] * world.size
    dist.all_gather_object(told, (links, _device_memory(world.device)), group=world.control)
    if world.rank != 0:
        return None
    return {
        "stages": [asdict(costs) for costs in stages],
        "links": [asdict(link) for fits, _ in told for link in fits],
        "memory_bytes": [memory for _, memory in told],
    }


def _measure_stages(model: PipelineModel, options: ProfileOptions, world: World) -> list[StageCosts]:
    """Measure one stage after the other; every rank gets all costs."""
    values = _tensors(model.inputs(0)[0], "the model's input")
    costs: list[StageCosts] = []
    last = options.num_stages - 1
    for stage in range(options.num_stages):
        told: list[Any] = [None]
        owner = stage % world.size
        if world.rank == owner:
            loss = None
            if stage == last:
                loss = partial(_loss, model, _moved(_tensors(model.targets(0)[0], "the model's target"), world.device))
            module = model.stage(stage).to(world.device)
            inputs = _moved(values, world.device)
            measured, outputs = measure_stage(module, inputs, repeats=options.repeats, first=stage == 0, loss=loss)
            told = [(measured, _moved(outputs, torch.device("cpu")))]
        dist.broadcast_object_list(told, src=owner, group=world.control)
        measured, values = told[0]
        costs.append(measured)
    return costs


def _loss(model: PipelineModel, target: Values, output: Any) -> torch.Tensor:
    return model.loss_fn(output, target[0] if len(target) == 1 else target)


def _tensors(value: Any, what: str) -> Values:
    tensors = as_tensors(value)
    if tensors is None:
        raise UsageError(
            f"{what} must be a tensor or a flat tuple of tensors, got {type(value).__name__}", code="model-input"
        )
    return tensors


def _moved(values: Values, device: torch.device) -> Values:
    return tuple(tensor.to(device) for tensor in values)


def _device_memory(device: torch.device) -> int | None:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


if __name__ == "__main__":
    reported(main)
