"""Torch's own pipeline runtime: run an exported table in it, and get the tables of its schedules.

This is the one place that touches underscored names of `torch.distributed.pipelining`. They are those of torch 2.13
and 2.14: another version is refused here rather than misread.

``step`` runs on any device of torch's; it is tested on CPU with gloo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage

from cpipe.errors import UsageError

__all__ = ["TorchSchedule", "torch_messages", "torch_schedule_table"]

_VERSIONS = ("2.13.", "2.14.")  # those that the tests have run on

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class TorchSchedule:
    """A schedule table in torch's `_PipelineScheduleRuntime`, for one rank.

    Parameters
    ----------
    table
        A file in the layout `layout`.
    stages
        The modules of this rank by stage; each takes and returns one tensor of the same shape for every microbatch.
    num_stages, microbatches
        Of the whole pipeline; torch checks the table against both.
    loss_fn
        From the last stage's output and the target of a microbatch to a scalar.
    layout
        ``compute_only`` or ``compute_comms``.
    example
        A tensor like the input and output of every stage for one microbatch. Without it torch runs the pipeline once
        more before the first step, to learn the shapes.
    device
        Where the stages are.
    group
        The pipeline's process group: its ranks are the rows of the table. None is all ranks.
    scale_grads
        Divide gradients by the number of microbatches, at REDUCE_GRAD.
    defer_receives
        Let torch place receives late when it places messages (``compute_only``).

    Raises
    ------
    UsageError
        With another torch than the one whose names these are.
    """

    def __init__(
        self,
        table: str | Path,
        stages: Mapping[int, nn.Module],
        *,
        num_stages: int,
        microbatches: int,
        loss_fn: LossFunction,
        layout: str = "compute_only",
        example: torch.Tensor | None = None,
        device: torch.device | None = None,
        group: ProcessGroup | None = None,
        scale_grads: bool = True,
        defer_receives: bool = False,
    ) -> None:
        _check_version()
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

        self.stages = [
            PipelineStage(
                module,
                index,
                num_stages,
                device or torch.device("cpu"),
                input_args=_like(example, with_gradient=index > 0),
                output_args=_like(example, with_gradient=True),
                group=group,
            )
            for index, module in sorted(stages.items())
        ]
        self._runtime = _PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
            list(self.stages),
            microbatches,
            loss_fn=loss_fn,
            scale_grads=scale_grads,
            defer_pp_recv=defer_receives,
        )
        self._runtime._load_csv(str(table), format=layout)  # type: ignore[arg-type]

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """What each rank runs, messages and collectives included."""
        order = self._runtime.pipeline_order_with_comms
        return tuple(tuple(map(str, order[rank])) for rank in sorted(order))

    def step(self, inputs: torch.Tensor | None = None, targets: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Run one iteration; gradients are added to the modules' parameters.

        Parameters
        ----------
        inputs
            The whole batch on the rank of stage 0, cut along its first dimension into equal microbatches.
        targets
            The whole batch on the rank of the last stage.

        Returns
        -------
        list of tensor
            The loss of each microbatch on the rank of the last stage; empty elsewhere.
        """
        losses: list[torch.Tensor] = []
        last = any(stage.is_last for stage in self.stages)
        arguments = () if inputs is None else (inputs,)
        self._runtime.step(*arguments, target=targets, losses=losses if last else None, return_outputs=False)
        return losses


def torch_schedule_table(
    name: str,
    num_ranks: int,
    microbatches: int,
    *,
    stages_per_rank: int | None = None,
    with_messages: bool = False,
    defer_receives: bool = False,
) -> str:
    """Return the table of one of torch's own schedules, made without any process.

    Parameters
    ----------
    name
        Its class without ``Schedule``: ``GPipe``, ``1F1B``, ``Interleaved1F1B``, ``InterleavedZeroBubble``,
        ``ZBVZeroBubble``, ``DualPipeV``, ``LoopedBFS``.
    num_ranks, microbatches
        Of the pipeline.
    stages_per_rank
        None is what the schedule is made for.
    with_messages
        With messages and collectives as torch places them (``compute_comms``).
    defer_receives
        Place receives late (torch's ``defer_pp_recv``).

    Raises
    ------
    UsageError
        With another torch than the one whose names these are.
    """
    _check_version()
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    rows: Sequence[Sequence[Any]] = get_schedule_ops(
        name, num_ranks, microbatches, stages_per_rank, with_comms=with_messages, defer_pp_recv=defer_receives
    )
    return "".join(",".join("" if action is None else str(action) for action in row) + "\n" for row in rows)


def torch_messages(table: str, microbatches: int) -> str:
    """Return a table of compute ops (``compute_only``) with the messages and collectives that torch adds to it.

    Parameters
    ----------
    table
        One line a rank, every stage in it.
    microbatches
        Of the pipeline.

    Raises
    ------
    UsageError
        With another torch than the one whose names these are.
    AssertionError
        From torch, for a table whose ranks wait for each other.
    """
    _check_version()
    from torch.distributed.pipelining import schedules

    rows = [[schedules._Action.from_str(cell) for cell in line.split(",")] for line in table.splitlines()]
    placement = {
        part.stage_index: rank
        for rank, row in enumerate(rows)
        for action in row
        if action is not None
        for part in action.sub_actions or (action,)
    }
    ready = {
        rank: schedules._add_reduce_grad(schedules._add_unshard_reshard(row), microbatches)  # type: ignore[arg-type]
        for rank, row in enumerate(rows)
    }
    lowered = schedules._add_send_recv(ready, placement.__getitem__, len(placement))  # type: ignore[arg-type]
    return "".join(",".join(map(str, lowered[rank])) + "\n" for rank in range(len(rows)))


def _like(example: torch.Tensor | None, *, with_gradient: bool) -> torch.Tensor | None:
    return None if example is None else example.detach().clone().requires_grad_(with_gradient)


def _check_version() -> None:
    if not torch.__version__.startswith(_VERSIONS):
        known = " and ".join(version.rstrip(".") for version in _VERSIONS)
        message = f"this reads internals of torch {known}, found torch {torch.__version__}"
        raise UsageError(message, code="torch-version")
