"""Tests of cpipe.runtime.profiler, storage and measure: bytes by hand, times that exist, a line through points."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
from torch import Tensor, nn
from toy_models import checkpointed, reentrant, two_tensors

from cpipe.errors import UsageError
from cpipe.runtime.measure import fit_line
from cpipe.runtime.models import Job
from cpipe.runtime.profiler import measure_stage
from cpipe.runtime.storage import LiveBytes

JOB = Job(num_stages=3, microbatches=2)
ROWS, WIDTH = 8, 16
VALUE = 4 * ROWS * WIDTH
"""Bytes of one activation of the layers below."""
WEIGHT = 4 * WIDTH * WIDTH


def two_layers() -> nn.Module:
    """Return two linear layers without bias: each keeps its input for W and its weight for D."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))


def test_live_bytes_follow_the_holders() -> None:
    """A storage counts once, views included, as long as anything holds it; what is ignored never does."""
    weight = torch.ones(WIDTH, WIDTH)
    with LiveBytes([weight]) as meter:
        assert meter.current() == 0
        first = torch.zeros(ROWS, WIDTH)
        view = first.t()
        product = view.t() @ weight.t()
        assert meter.current() == 2 * VALUE
        del first
        assert meter.current() == 2 * VALUE
        del view
        assert meter.current() == VALUE
        meter.reset_peak()
        product = product * 2 + 1
        assert (meter.current(), meter.peak) == (VALUE, 3 * VALUE)


def test_bytes_of_a_middle_stage() -> None:
    """F holds the input, what the second layer reads, and the output; D frees nothing and adds two gradients."""
    costs, (output,) = measure_stage(two_layers(), (torch.rand(ROWS, WIDTH),), repeats=2)
    assert output.shape == (ROWS, WIDTH)
    assert not output.requires_grad
    assert costs.activation_bytes == 3 * VALUE
    assert costs.held_bytes == 5 * VALUE  # with the incoming gradient, and that of the first layer's output
    assert costs.forward_transient_bytes == 0
    assert costs.input_grad_transient_bytes >= VALUE  # the gradient that is sent
    assert costs.weight_grad_transient_bytes >= WEIGHT  # a weight's gradient, before it is added
    assert (costs.parameter_bytes, costs.gradient_bytes, costs.buffer_bytes) == (2 * WEIGHT, 2 * WEIGHT, 0)
    assert costs.output_bytes == VALUE
    assert (costs.reruns, costs.split_error) == (0, "")


def test_times_of_all_ops() -> None:
    """Every op has a time, the shortest of its repeats; the first stage has no D."""
    values = (torch.rand(ROWS, WIDTH),)
    costs, _ = measure_stage(two_layers(), values, repeats=3)
    times = (costs.forward_s, costs.input_grad_s, costs.weight_grad_s, costs.full_backward_s)
    assert all(seconds is not None and seconds > 0 for seconds in times)
    assert list(costs.spread) == ["F", "D", "W", "B"]
    assert min(costs.spread.values()) >= 0
    first, _ = measure_stage(two_layers(), values, repeats=3, first=True)
    assert first.input_grad_s == 0
    assert first.activation_bytes == 2 * VALUE  # the input is the data's


def test_last_stage_measures_the_loss() -> None:
    """The loss is part of the last stage, which sends nothing on."""

    def loss(output: Tensor) -> Tensor:
        return output.square().sum()

    costs, (value,) = measure_stage(two_layers(), (torch.rand(ROWS, WIDTH),), repeats=1, loss=loss)
    assert value.shape == ()
    assert costs.output_bytes == 0


def test_frozen_parameters_have_no_gradient() -> None:
    """Only parameters that are trained have gradients to reduce."""
    module = two_layers()
    next(module.parameters()).requires_grad_(False)
    costs, _ = measure_stage(module, (torch.rand(ROWS, WIDTH),), repeats=1)
    assert (costs.parameter_bytes, costs.gradient_bytes) == (2 * WEIGHT, WEIGHT)


def test_tuples_cross_boundaries() -> None:
    """A stage may take and give several tensors; a message is all of them."""
    model = two_tensors(JOB)
    first, values = measure_stage(model.stage(0), (model.inputs(0)[0],), repeats=1, first=True)
    second, _ = measure_stage(model.stage(1), values, repeats=1)
    assert (len(values), first.output_bytes, second.output_bytes) == (2, 256, 256)


class Given(nn.Module):
    """Gives its input as `kind` says."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self._kind = kind

    def forward(self, value: Tensor) -> object:
        """Return one value, `weight` x `value` in it."""
        return self._kind([self.weight * value])


def test_lists_cross_boundaries() -> None:
    """A list of tensors is what a tuple of them is; anything else is refused by its type."""
    costs, outputs = measure_stage(Given(list), (torch.rand(ROWS, WIDTH),), repeats=1)
    assert (len(outputs), costs.output_bytes) == (1, VALUE)
    with pytest.raises(UsageError, match="expected a tensor or a flat tuple of tensors, got set"):
        measure_stage(Given(set), (torch.rand(ROWS, WIDTH),), repeats=1)


def test_a_checkpoint_runs_again_for_each_split() -> None:
    """A checkpoint runs forward once in B, but more often in D and W: the difference is counted."""
    model = checkpointed(JOB)
    costs, _ = measure_stage(model.stage(1), (model.inputs(0)[0],), repeats=1)
    assert costs.reruns > 0
    assert costs.split_error == ""


def test_what_cannot_be_split_says_so() -> None:
    """A backward that cannot be split has B alone, and torch's own reason."""
    model = reentrant(JOB)
    costs, _ = measure_stage(model.stage(1), (model.inputs(0)[0],), repeats=1)
    assert (costs.input_grad_s, costs.weight_grad_s) == (None, None)
    assert costs.full_backward_s > 0
    assert "use_reentrant=True" in costs.split_error


def test_line_through_points() -> None:
    """A line is found exactly; with one size alone, it is a latency."""
    sizes = (8, 1_000, 50_000, 1_000_000)
    alpha, beta, residual = fit_line(sizes, [2e-4 + 3e-9 * size for size in sizes])
    assert alpha == pytest.approx(2e-4)
    assert beta == pytest.approx(3e-9)
    assert residual < 1e-9
    assert fit_line([100, 100], [4.0, 4.0]) == (4.0, 0.0, 0.0)


def test_small_messages_count_as_much_as_large_ones() -> None:
    """Differences are relative: a large message that is 10 % off does not move the latency of small ones by much."""
    sizes = (8, 16, 1_000_000)
    alpha, _, residual = fit_line(sizes, [1e-4, 1e-4, 1.1e-2])
    assert alpha == pytest.approx(1e-4, rel=1e-2)
    assert residual < 1e-2


def test_neither_is_negative() -> None:
    """Where the best line has a negative part, that part is 0: times that fall with size, or that start too low."""
    alpha, beta, residual = fit_line([1, 1_000], [2.0, 1.0])
    assert beta == 0
    assert 1.0 <= alpha <= 2.0
    assert residual > 0.1
    alpha, beta, _ = fit_line([1_000, 2_000], [1.0, 3.0])
    assert alpha == 0
    assert 1.0 / 1_000 <= beta <= 3.0 / 2_000


@pytest.mark.parametrize(("sizes", "seconds"), [([], []), ([1, 2], [1.0])])
def test_nothing_to_fit(sizes: list[int], seconds: list[float]) -> None:
    """A line needs a time for each size."""
    with pytest.raises(ValueError, match="expected as many times as sizes, and one at least"):
        fit_line(sizes, seconds)
