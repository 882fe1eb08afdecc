"""Tests of what processes compare before the first step, with the cards of all of them at hand."""

from __future__ import annotations

import msgspec
import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

import torch
from msgspec.structs import replace
from runtime_models import plan_by
from sample_plans import make_problem
from torch import nn

from cpipe.errors import Diagnostic
from cpipe.ir import Collectives, Plan
from cpipe.runtime import RuntimeFault
from cpipe.runtime.startup import Card, Crew, local_faults, meet, weights_sum


class Cards:
    """A bulletin on which all cards lie already."""

    def __init__(self, cards: list[Card]) -> None:
        self.notes: list[str | None] = [msgspec.json.encode(card).decode() for card in cards]

    def exchange(self, topic: str, note: str, limit_s: float) -> list[str | None]:
        """Return the cards."""
        return self.notes


@pytest.fixture(scope="module")
def plain() -> Plan:
    """Return a plan of two ranks."""
    return plan_by("1f1b", make_problem(2, 2))


@pytest.fixture(scope="module")
def replicated() -> Plan:
    """Return a plan of two ranks with data parallelism."""
    return plan_by("1f1b", replace(make_problem(2, 2), collectives=Collectives(mode="ddp", replicas=2)))


def cards_of(plan: Plan, replicas: int = 1) -> list[Card]:
    """Return the cards of processes that agree: replica by replica, rank by rank."""
    pipelines = [(2 * replica, 2 * replica + 1) for replica in range(replicas)]
    groups = [tuple(pipeline[rank] for pipeline in pipelines) for rank in range(2)]
    return [
        Card(rank=rank, pipeline=pipeline, replicas=groups[rank] if plan.groups else (), plan=plan.digest)
        for pipeline in pipelines
        for rank in range(2)
    ]


def told(cards: list[Card], plan: Plan) -> list[str]:
    """Return what the processes are told when they meet; empty when they may start."""
    try:
        meet(Cards(cards), cards[0], plan, 1.0)  # type: ignore[arg-type]
    except RuntimeFault as fault:
        return [f"{diagnostic.message} [{diagnostic.code}]" for diagnostic in fault.diagnostics]
    return []


def test_names(plain: Plan, replicated: Plan) -> None:
    """Processes are called by their rank, and by their replica where there are several."""
    assert Crew(cards_of(plain)).names == ["rank 0", "rank 1"]
    crew = Crew(cards_of(replicated, 2))
    assert crew.names == ["replica 0 rank 0", "replica 0 rank 1", "replica 1 rank 0", "replica 1 rank 1"]
    assert crew.pipelines == [[0, 1], [2, 3]]


def test_agreement(plain: Plan, replicated: Plan) -> None:
    """Processes that agree may start, whichever of them has which rank."""
    assert told(cards_of(plain), plain) == []
    assert told(cards_of(replicated, 2), replicated) == []
    crossed = [replace(card, rank=1 - card.rank) for card in cards_of(plain)]
    assert told(crossed, plain) == []
    assert Crew(crossed).pipelines == [[1, 0]]


def test_every_fault_is_told_once(plain: Plan) -> None:
    """What processes found by themselves and what differs is told together, a common fault once."""
    fault = Diagnostic(code="invalid-plan", message="the plan is not valid")
    own = Diagnostic(code="missing-loss", message="rank 1 has no loss")
    first, second = (replace(card, faults=(fault,)) for card in cards_of(plain))
    assert told([first, replace(second, faults=(fault, own), emulates=True)], plain) == [
        "the plan is not valid [invalid-plan]",
        "rank 1 has no loss [missing-loss]",
        "emulation (given or not) differs: False on process 0; True on process 1 [settings-differ]",
    ]


def test_pipelines_have_the_ranks_of_the_plan(plain: Plan) -> None:
    """A pipeline of another size, and one whose members see it differently, do not start."""
    third = Card(rank=2, pipeline=(0, 1, 2), plan=plain.digest)
    larger = [replace(card, pipeline=(0, 1, 2)) for card in cards_of(plain)]
    assert told([*larger, third], plain) == ["a pipeline has 3 processes (0, 1, 2), the plan 2 ranks [group-size]"]
    first, second = cards_of(plain)
    mixed = [first, second, Card(rank=1, pipeline=(0, 2), plan=plain.digest)]
    assert "process 0 is in two pipelines [group-differs]" in told(mixed, plain)


def test_replicas_are_joined_by_rank(plain: Plan, replicated: Plan) -> None:
    """Data-parallel groups join the same rank of all pipelines, where the plan has them."""
    cards = cards_of(replicated, 2)
    cards[3] = replace(cards[3], replicas=(2, 3))
    message = "replica 1 rank 1: its data-parallel group joins processes 2, 3, expected 1, 3 [data-parallel]"
    assert told(cards, replicated) == [message]
    assert told([replace(card, replicas=()) for card in cards_of(replicated)], replicated) == []
    message = "there are replicas, but the plan has no data parallelism: they would drift apart [data-parallel]"
    assert told([replace(card, replicas=(0, 1)) for card in cards_of(plain)], plain) == [message]


def test_replicas_start_equal(replicated: Plan) -> None:
    """Replicas whose weights differ do not start; weights are compared by a checksum."""
    cards = cards_of(replicated, 2)
    cards = [replace(card, weights={str(card.rank): f"sum {process}"}) for process, card in enumerate(cards)]
    message = "the weights of stage 1 (a checksum of their bits) differs: sum 1 on process 1; sum 3 on process 3"
    assert f"{message} [weights-differ]" in told(cards, replicated)
    layer = nn.Linear(3, 3)
    before = weights_sum(layer)
    assert weights_sum(layer) == before
    with torch.no_grad():
        layer.weight[1, 1] += 1e-6
    assert weights_sum(layer) != before


def test_modules_are_modules(plain: Plan) -> None:
    """A stage is a module, not a function."""
    (fault,) = local_faults(plain, 0, {0: abs}, has_loss=True)
    assert (fault.code, fault.message) == (
        "stage-type",
        "rank 0: stage 0 is a builtin_function_or_method, expected a module",
    )
    assert local_faults(plain, 0, {0: nn.Identity()}, has_loss=False) == ()


def test_the_checksum_of_weights_is_over_their_bits() -> None:
    """Equal weights give equal sums on any number of threads, permuted weights give others."""
    torch.manual_seed(0)
    layer = nn.Linear(300, 700)
    threads = torch.get_num_threads()
    sums = set()
    for count in (1, 2):
        torch.set_num_threads(count)
        sums.add(weights_sum(layer))
    torch.set_num_threads(threads)
    assert len(sums) == 1
    with torch.no_grad():
        layer.weight.copy_(layer.weight.flip(0))
    assert weights_sum(layer) not in sums


def test_stages_that_share_a_parameter_are_not_reduced_twice() -> None:
    """A data-parallel plan refuses a parameter of two stages of one rank by name; others may share it."""
    problem = make_problem(2, 2, placement=(0, 1, 1, 0))
    shared = nn.Linear(2, 2)
    stages = {0: shared, 3: nn.Sequential(shared)}
    assert local_faults(plan_by("greedy", problem), 0, stages, has_loss=True) == ()
    replicated = plan_by("greedy", replace(problem, collectives=Collectives(mode="ddp", replicas=2)))
    faults = local_faults(replicated, 0, stages, has_loss=True)
    assert [fault.code for fault in faults] == ["shared-parameter"] * 2
    assert "stages 0 and 3 share the parameter '0.weight'" in faults[0].message
