"""Models for `cpipe run` and `cpipe profile` in tests: small, and each broken in its own way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cpipe.runtime.models import Job, stage_seed

__all__ = ["checkpointed", "crashing", "hanging", "killed", "reentrant", "two_tensors", "unsteady"]

WIDTH = 8


class ToyModel:
    """One stage class for all stages; microbatches are (4, 8) tensors."""

    def __init__(self, job: Job, make: Callable[[int, Job], nn.Module]) -> None:
        self._job = job
        self._make = make
        self.loss_fn: Callable[[Any, Any], Tensor] = _loss

    def stage(self, stage: int) -> nn.Module:
        """Return a stage whose parameters depend on the seed and its number."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stage_seed(self._job.seed, stage))
            return self._make(stage, self._job)

    def inputs(self, step: int) -> list[Tensor]:
        """Return one tensor a microbatch."""
        generator = torch.Generator().manual_seed(step)
        return [torch.rand(4, WIDTH, generator=generator) for _ in range(self._job.microbatches)]

    def targets(self, step: int) -> list[Tensor]:
        """Return zeros."""
        return [torch.zeros(4, WIDTH) for _ in range(self._job.microbatches)]


def _loss(output: Any, target: Tensor) -> Tensor:
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return (first - target).square().sum()


class _Linear(nn.Module):
    """A layer that does something odd before its forward."""

    def __init__(self, oddity: Callable[[], object] = bool) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.oddity = oddity

    def forward(self, hidden: Tensor) -> Tensor:
        """Return a tensor of the shape of `hidden`."""
        self.oddity()
        output: Tensor = self.layer(hidden)
        return output


class _Pair(nn.Module):
    """Two tensors in (one in the first stage), two out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return tensors of the shape of `hidden`."""
        mixed = self.layer(hidden if other is None else hidden * other)
        return mixed, torch.tanh(mixed)


class _Checkpointed(nn.Module):
    """Layers behind an activation checkpoint."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self._reentrant = reentrant

    def forward(self, hidden: Tensor) -> Tensor:
        """Return a tensor of the shape of `hidden`."""
        output: Tensor = checkpoint(self.layers, hidden, use_reentrant=self._reentrant)
        return output


_calls = 0


def unsteady(job: Job) -> ToyModel:
    """Return other parameters at each call in a process, so that no check of the gradients can pass."""
    global _calls
    _calls += 1
    return ToyModel(Job(num_stages=job.num_stages, microbatches=job.microbatches, seed=_calls), _plain)


def _plain(stage: int, job: Job) -> nn.Module:
    return _Linear()


def two_tensors(job: Job) -> ToyModel:
    """Return stages that hand over two tensors."""
    return ToyModel(job, lambda stage, job: _Pair())


def crashing(job: Job) -> ToyModel:
    """Return a model whose stage 1 raises in its forward."""
    return ToyModel(job, lambda stage, job: _Linear(_raise if stage == 1 else bool))


def _raise() -> None:
    raise ArithmeticError("stage 1 has had enough")


def hanging(job: Job) -> ToyModel:
    """Return a model whose stage 1 takes an hour for its forward."""
    return ToyModel(job, lambda stage, job: _Linear((lambda: time.sleep(3600)) if stage == 1 else bool))


def killed(job: Job) -> ToyModel:
    """Return a model whose stage 1 kills its process."""
    return ToyModel(job, lambda stage, job: _Linear(_kill if stage == 1 else bool))


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def checkpointed(job: Job) -> ToyModel:
    """Return stages that run their forward again in the backward."""
    return ToyModel(job, lambda stage, job: _Checkpointed(reentrant=False))


def reentrant(job: Job) -> ToyModel:
    """Return stages whose backward cannot be split."""
    return ToyModel(job, lambda stage, job: _Checkpointed(reentrant=True))


def exiting(job: Job) -> ToyModel:
    """Return no model: exit as if all were well."""
    raise SystemExit(0)
