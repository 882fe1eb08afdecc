"""The executor: runs the program that a plan gives one rank, step after step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cpipe.ir import Plan
from cpipe.runtime.bulletin import Bulletin
from cpipe.runtime.channels import Hold
from cpipe.runtime.clock import Clock
from cpipe.runtime.faults import RuntimeFault
from cpipe.runtime.interpreter import Interpreter
from cpipe.runtime.limits import Timetable
from cpipe.runtime.monitor import Activity, Monitor
from cpipe.runtime.offload import CopyStreams
from cpipe.runtime.records import StepResult
from cpipe.runtime.specs import MessageSpec, as_tensors, encode_spec
from cpipe.runtime.stages import StageRunner
from cpipe.runtime.startup import Card, local_faults, meet, weights_sum
from cpipe.runtime.watchdog import Watchdog
from cpipe.runtime.wires import Wires

__all__ = ["PlanExecutor"]

LossFunction = Callable[[Any, Any], Tensor]
T = TypeVar("T")
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class PlanExecutor:
    """Runs one rank of a plan; every process of the default process group makes one, all at the same time.

    Before the constructor returns, all processes have compared what they are about to run and tried every channel; if
    anything is wrong or differs, all of them raise the same `RuntimeFault`.

    Parameters
    ----------
    plan
        The same on every rank.
    stages
        The modules of the stages that the plan places on this rank, on `device` already. A module takes the tensors
        that the stage before gives as separate arguments and gives a tensor or a flat tuple of tensors, of any
        dtypes, with the same shapes for every microbatch of every step. Where the plan recomputes a stage, its module
        runs twice for each microbatch, with the same random numbers and leaving its buffers alone the second time.
        Where it offloads one, what the module saves for the backward is in (on CUDA: pinned) host memory meanwhile.
    loss_fn
        On the rank of the last stage: ``loss_fn(output, target)`` gives the scalar loss of a microbatch.
    rank
        Pipeline rank of this process; by default its rank in the pipeline group.
    pipeline_group
        Processes of this pipeline; by default those of the default group.
    device_mesh
        Instead of the groups: a mesh with a dimension ``pp`` and, for data parallelism, ``dp``.
    data_parallel_group
        The replicas of this rank, one in each pipeline; needed when the plan has collectives and there are several
        pipelines.
    device
        Where to compute; by default that of the first parameter, or the CPU. On CUDA the groups use NCCL.
    scale_grads
        Divide each loss by the number of microbatches before its backward.
    watchdog
        Limits on waiting.
    emulation
        Holds received messages back as slow links would, on the CPU (see `cpipe.runtime.emulate`).
    optimizer
        Makes the optimizer of one stage from its parameters (with zero1: from this replica's flat shards). STEP steps
        it and clears the gradients. Without one, gradients stay in the parameters and add up until they are cleared.
    record
        Keep when each instruction ran.
    specs
        What stages send, where it is declared rather than learned in the first step: stage -> its outputs.

    Raises
    ------
    RuntimeFault
        When the run cannot start.
    """

    def __init__(
        self,
        plan: Plan,
        stages: Mapping[int, nn.Module],
        loss_fn: LossFunction | None = None,
        *,
        rank: int | None = None,
        pipeline_group: Any = None,
        device_mesh: Any = None,
        data_parallel_group: Any = None,
        device: torch.device | str | None = None,
        scale_grads: bool = True,
        watchdog: Watchdog | None = None,
        emulation: Hold | None = None,
        optimizer: OptimizerFactory | None = None,
        record: bool = False,
        specs: Mapping[int, MessageSpec] | None = None,
    ) -> None:
        if not dist.is_initialized():
            message = "there is no process group; call torch.distributed.init_process_group first"
            raise RuntimeFault(message, code="not-initialized")
        if device_mesh is not None:
            pipeline_group, data_parallel_group = _groups_of(device_mesh)
        group = pipeline_group if pipeline_group is not None else dist.group.WORLD
        self.rank = dist.get_rank(group) if rank is None else rank
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self._plan = plan
        self._record = record
        self._closed = False
        self._num_steps = 0
        self._watchdog = watchdog or Watchdog()
        self._device = _device_of(device, stages)
        self._bulletin = Bulletin()
        faults = local_faults(plan, self.rank, stages, loss_fn is not None)
        replicated = plan.groups and not faults
        card = Card(
            rank=self.rank,
            pipeline=tuple(dist.get_process_group_ranks(group)),
            replicas=() if data_parallel_group is None else tuple(dist.get_process_group_ranks(data_parallel_group)),
            plan=plan.digest,
            microbatches=plan.problem.microbatches,
            scale_grads=scale_grads,
            emulates=emulation is not None,
            specs={str(stage): encode_spec(spec) for stage, spec in sorted((specs or {}).items())},
            weights={str(stage): weights_sum(module) for stage, module in stages.items()} if replicated else {},
            faults=faults,
        )
        self._crew = meet(self._bulletin, card, plan, self._watchdog.startup_s)
        scale = plan.problem.microbatches * plan.problem.flows if scale_grads else 1
        offloaded = _offloaded(plan, self.rank)
        streams = CopyStreams(self._device if offloaded else torch.device("cpu"))
        self._runners = {
            stage: StageRunner(
                stage,
                self.rank,
                module,
                loss_fn if plan.problem.is_last(stage) else None,
                scale,
                recomputes=stage in plan.problem.recompute,
                offloads=offloaded.get(stage, ()),
                streams=streams,
            )
            for stage, module in sorted(stages.items())
        }
        self._monitor = Monitor(self._bulletin, self._watchdog, self._crew.names, self._crew.ranks)
        self._wires = Wires(plan, self._crew, self._bulletin.me, self._monitor, self._device, self._watchdog.startup_s)
        self._monitor.start()
        try:
            self._guarded(lambda: self._connect(dist.get_backend(group), data_parallel_group, emulation))
            self._guarded(lambda: self._prepare(optimizer))
        except BaseException:
            self.close()
            raise

    def step(self, inputs: Sequence[Any] | None = None, targets: Sequence[Any] | None = None) -> StepResult:
        """Run one iteration.

        Parameters
        ----------
        inputs
            On the rank of the first stage: one entry per microbatch, each a tensor or a flat tuple of tensors.
            Ignored elsewhere.
        targets
            On the rank of the last stage: one entry per microbatch, whatever the loss function takes. Ignored
            elsewhere.

        With several flows, each has microbatches of its own: give the rank of its first stage its inputs, and that of
        its last stage its targets.

        Raises
        ------
        RuntimeFault
            When something failed, here or on any other rank: the same on all of them. The executor cannot be used
            any more then.
        """
        if self._closed:
            raise RuntimeFault("the executor is closed", code="closed", rank=self.rank)
        return self._guarded(lambda: self._step(inputs, targets))

    def parameters(self, stage: int) -> list[nn.Parameter]:
        """Return what an optimizer of `stage` steps: its trainable parameters, or with zero1 this replica's shards."""
        if stage in self._wires.replicated:
            return self._wires.replicated[stage].trained()
        return _trainable(self._runners[stage].module)

    def gather_parameters(self) -> None:
        """Bring the parameters of all stages up to date on this replica; all replicas call it together.

        With zero1 a step leaves the parameters that other replicas stepped as they were until the next step gathers
        them: call this before saving or evaluating a model. Otherwise there is nothing to do.
        """

        def gather() -> None:
            for stage, replicated in self._wires.replicated.items():
                what = f"the parameters of stage {stage}"
                self._monitor.enter(self._activity("wait", what, self._wires.replicas))
                replicated.join(replicated.gather())
            self._monitor.enter(self._activity("outside", "gathered parameters"))

        self._guarded(gather)

    def close(self) -> None:
        """End the threads and communicators of this executor; the process groups it was given stay."""
        if self._closed:
            return
        self._closed = True
        self._monitor.close()
        self._wires.close(failed=self._monitor.failed)

    def __enter__(self) -> PlanExecutor:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an exception in the body ends the other ranks too."""
        if error is not None and not isinstance(error, RuntimeFault):
            self._monitor.fail(self._told(error))
        self.close()

    def _connect(self, backend: str, data_parallel_group: Any, emulation: Hold | None) -> None:
        """Make the communicators."""
        on_cuda = self._device.type == "cuda"
        if on_cuda and emulation is not None:
            raise RuntimeFault("emulated links work on the CPU only", code="emulation-device", rank=self.rank)
        if on_cuda and "nccl" not in backend:
            message = f"tensors on {self._device} need NCCL, the pipeline group uses {backend}"
            raise RuntimeFault(message, code="backend", rank=self.rank)
        backend = "nccl" if on_cuda else "gloo"
        self._monitor.enter(self._activity("wait", "the channels to connect"))
        self._wires.connect(backend, emulation)
        if self._plan.groups:
            trained = {stage: _trainable(runner.module) for stage, runner in self._runners.items()}
            if self._plan.problem.flows > 1:
                self._wires.connect_copies(trained, backend)
            else:
                self._wires.connect_replicas(data_parallel_group, trained, backend)

    def _prepare(self, optimizer: OptimizerFactory | None) -> None:
        """Get ready for the first step."""
        self._monitor.enter(self._activity("compute", "making the optimizers"))
        pipeline = next(pipeline for pipeline in self._crew.pipelines if self._bulletin.me in pipeline)
        self._clock = Clock(self._device, self._record)
        self._timetable = Timetable(
            self._plan,
            self.rank,
            self._watchdog,
            pipeline,
            self._wires.replicas,
            host_runs_ahead=self._device.type == "cuda",
        )
        self._interpreter = Interpreter(
            self._plan,
            self.rank,
            self._runners,
            self._wires,
            self._monitor,
            self._bulletin,
            timetable=self._timetable,
            specs=self._crew.specs,
            board=f"pipeline/{pipeline[0]}",
            clock=self._clock,
        )
        if optimizer is not None:
            trained = {stage: self.parameters(stage) for stage in self._runners}
            self.optimizers = {stage: optimizer(found) for stage, found in trained.items() if found}
        self._monitor.enter(self._activity("outside", "ready for the first step"))

    def _step(self, inputs: Sequence[Any] | None, targets: Sequence[Any] | None) -> StepResult:
        self._monitor.check()
        start = time.monotonic()
        self._timetable.first = self._num_steps == 0
        summary = self._plan.problem
        given = self._inputs(inputs) if any(map(summary.is_first, self._runners)) else ()
        wanted = self._microbatches("targets", targets) if any(map(summary.is_last, self._runners)) else ()
        self._clock.restart()
        losses = self._interpreter.run(given, wanted)
        self._monitor.enter(self._timetable.stepping)
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._interpreter.drain()
        self._num_steps += 1
        self._monitor.step = self._num_steps
        self._monitor.enter(self._activity("outside", f"ended step {self._num_steps - 1}"))
        records = self._interpreter.records() if self._record else ()
        return StepResult(losses=losses, records=records, start_s=start, end_s=time.monotonic())

    def _microbatches(self, name: str, given: Any) -> Sequence[Any]:
        """Check that there is one entry per microbatch."""
        expected = self._plan.problem.microbatches
        end = "first" if name == "inputs" else "last"
        if given is None:
            message = f"rank {self.rank}: step needs {name}: the {end} stage stands here"
            raise RuntimeFault(message, code=f"{name}-missing", rank=self.rank)
        if isinstance(given, Tensor):
            message = f"rank {self.rank}: {name} is one tensor, expected a sequence of {expected} microbatches"
            hint = f"cut it: tensor.chunk({expected})"
            raise RuntimeFault(message, code=f"{name}-type", rank=self.rank, hint=hint)
        if len(given) != expected:
            message = f"rank {self.rank}: {len(given)} {name}, the plan has {expected} microbatches"
            raise RuntimeFault(message, code=f"{name}-count", rank=self.rank)
        return tuple(given)

    def _inputs(self, given: Sequence[Any] | None) -> list[tuple[Tensor, ...]]:
        found = []
        for mb, item in enumerate(self._microbatches("inputs", given)):
            tensors = as_tensors(item)
            if tensors is None:
                message = f"rank {self.rank}: input of microbatch {mb} is a {type(item).__name__}, expected a tensor"
                fault = f"{message} or a flat tuple of tensors"
                raise RuntimeFault(fault, code="inputs-type", rank=self.rank, stage=0, microbatch=mb)
            found.append(tensors)
        return found

    def _activity(self, state: str, what: str, awaits: tuple[int, ...] = ()) -> Activity:
        """Return an activity outside of the plan's program."""
        limit = self._watchdog.startup_s
        return Activity(state=state, what=what, awaits=awaits, expected_s=0.0, limit_s=limit)

    def _guarded(self, action: Callable[[], T]) -> T:
        """Run an action; whatever it raises ends the run on all ranks."""
        try:
            return action()
        except RuntimeFault as fault:
            told = self._monitor.fail(fault)
            if told is fault:
                raise
            raise told from fault
        except Exception as error:
            raise self._monitor.fail(self._told(error)) from error
        except BaseException as error:  # an interrupt stays one
            self._monitor.fail(self._told(error))
            raise

    def _told(self, error: BaseException) -> RuntimeFault:
        """Tell an exception as a fault of this rank."""
        doing, name = self._monitor.activity, self._crew.names[self._bulletin.me]
        text = str(error).strip()
        message = f"{name}: {doing.what} failed: {type(error).__name__}" + f": {text}" * bool(text)
        return RuntimeFault(message, code="failed", rank=self.rank, stage=doing.stage, microbatch=doing.mb)


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _device_of(device: torch.device | str | None, stages: Mapping[int, nn.Module]) -> torch.device:
    if device is not None:
        return torch.device(device)
    modules = [stages[stage] for stage in sorted(stages) if isinstance(stages[stage], nn.Module)]
    found = (parameter.device for module in modules for parameter in module.parameters())
    return next(found, torch.device("cpu"))


def _groups_of(mesh: Any) -> tuple[Any, Any]:
    """Return the groups of this process along ``pp`` and ``dp`` of a device mesh."""
    names = mesh.mesh_dim_names or ()
    if "pp" not in names:
        message = f"the device mesh has dimensions {', '.join(names) or 'without names'}, expected pp, and dp if any"
        raise RuntimeFault(message, code="device-mesh")
    return mesh.get_group("pp"), mesh.get_group("dp") if "dp" in names else None


def _offloaded(plan: Plan, rank: int) -> dict[int, set[int]]:
    """Return the microbatches of each stage of `rank` whose activations go to host memory."""
    found: dict[int, set[int]] = {}
    for program in plan.ranks:
        for step in program.ops:
            if program.rank == rank and step.op == "OFFLOAD" and step.stage is not None and step.mb is not None:
                found.setdefault(step.stage, set()).add(step.mb)
    return found
