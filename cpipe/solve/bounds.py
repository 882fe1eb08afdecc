"""Lower bounds on the makespan without a solver; each holds for every schedule, and each says why.

Notation: f, g, b are the forward, the shortest way to the gradient (min of D and B) and the shortest whole backward
of a stage; head, round_trip and tail are those of `cpipe.solve.chains`.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from cpipe.ir import Bound, Problem
from cpipe.sim.memory import receive_reserve
from cpipe.solve.chains import Chains
from cpipe.solve.jackson import one_machine_bounds
from cpipe.solve.refute import raised_bound

__all__ = [
    "chain_bounds",
    "collective_bounds",
    "link_bounds",
    "load_bounds",
    "lower_bound",
    "memory_bounds",
    "span_bound",
]


def lower_bound(problem: Problem) -> Bound:
    """Return the best of all closed-form bounds, raised by contradiction; ties go to the first in the order below.

    What all devices do together at the end comes on top of each of them.
    Those of memory, of one machine and by contradiction know neither several flows nor pairs that are shorter than
    their parts.
    """
    chains = Chains(problem)
    best = Bound(value_ns=0, reason="nothing to do")
    families = (chain_bounds, load_bounds, link_bounds, memory_bounds, one_machine_bounds)
    for family in families if problem.is_plain else families[:3]:
        for value, reason in family(problem, chains):
            if value > best.value_ns:
                best = Bound(value_ns=value, reason=reason)
    best = raised_bound(problem, best)
    return replace(best, value_ns=best.value_ns + problem.step_ns)


def span_bound(problem: Problem) -> Bound:
    """Return a bound on the longest span of a device: what one device must do between its first start and last end.

    * All its work, after the first all-gather of its stages, before the last reduction.
    * The round trip of one microbatch from each of its stages, and its backward there.
    """
    chains = Chains(problem)
    best = Bound(value_ns=0, reason="nothing to do")
    for device, owner in enumerate(problem.devices):
        stages = problem.stages_of(device)
        if not stages:
            continue
        saved = sum(map(problem.pair_saving_ns, stages))
        work = problem.microbatches * (sum(chains.forward[s] + chains.backward[s] for s in stages) - saved)
        around = min(chains.gather[stage] for stage in stages) + min(chains.reduce[stage] for stage in stages)
        trips = (chains.gather[s] + chains.round_trip[s] + chains.backward[s] + chains.reduce[s] for s in stages)
        for value, reason in ((work + around, "work"), (max(trips), "one microbatch's round trip")):
            if value > best.value_ns:
                best = Bound(value_ns=value, reason=f"{reason} of device {owner.name}")
    return best


def chain_bounds(problem: Problem, chains: Chains) -> Iterator[tuple[int, str]]:
    """Yield the way of one microbatch of each flow: down to the last stage, back, and what follows.

    ``head(last) + round_trip(last) + tail(last)``: nothing of it can overlap.
    """
    for last in (first + problem.flow_length - 1 for first in problem.flows):
        yield chains.head[last] + chains.round_trip[last] + chains.tail[last], "one microbatch through all stages"


def load_bounds(problem: Problem, chains: Chains) -> Iterator[tuple[int, str]]:
    """Yield the work of each device between its earliest start and what must follow its last op.

    * All work: no op starts before the smallest head of its stages; after the last op of the device the gradients of
      some stage must still be reduced. If no stage of the device can split, its last op is a B, after which the
      gradient still travels to stage 0.
    * F and the way to the gradient only: all n of them on the device precede or are the last D (or B) of the device,
      and from its start ``tail`` follows, of which g is already in the load. (It is in no fused pair: the F of a pair
      has its own D or B later.)

    A forward in a fused pair counts with what the pair adds to the backward beside it.
    """
    n = problem.microbatches
    for device, owner in enumerate(problem.devices):
        stages = problem.stages_of(device)
        if not stages:
            continue
        head = min(chains.head[stage] for stage in stages)
        saved = n * sum(map(problem.pair_saving_ns, stages))
        work = n * sum(chains.forward[stage] + chains.backward[stage] for stage in stages) - saved
        after = min(
            chains.reduce[stage] if problem.stages[stage].can_split else chains.tail[stage] - chains.backward[stage]
            for stage in stages
        )
        yield head + work + after, f"work of device {owner.name}"
        work = n * sum(chains.forward[stage] + chains.gradient[stage] for stage in stages) - saved
        after = min(chains.tail[stage] - chains.gradient[stage] for stage in stages)
        yield head + work + after, f"forward and input-gradient work of device {owner.name}"


def link_bounds(problem: Problem, chains: Chains) -> Iterator[tuple[int, str]]:
    """Yield the occupancy of each pipe, and of each hop on it, between its earliest use and what must follow.

    A pipe serves one message at a time: from the first that can be ready, all occupancies follow one another, and
    after the last of them its latency and the rest of its microbatch's way remain. Collectives that contend for the
    pipe are served one at a time with them; see `collective_bounds`.
    """
    yield from collective_bounds(problem, chains)
    n = problem.microbatches
    uses: dict[int, list[tuple[int, int, int]]] = {}
    for boundary, hop in enumerate(problem.forward_hops):
        if hop is not None:
            head = chains.head[boundary] + chains.forward[boundary]
            after = hop.latency_ns + chains.round_trip[boundary + 1] + chains.tail[boundary + 1]
            uses.setdefault(hop.pipe, []).append((head, n * hop.occupancy_ns, after))
    for boundary, hop in enumerate(problem.backward_hops):
        if hop is not None:
            stage = boundary + 1
            head = chains.head[stage] + chains.round_trip[stage] + chains.gradient[stage]
            uses.setdefault(hop.pipe, []).append((head, n * hop.occupancy_ns, hop.latency_ns + chains.tail[boundary]))
    for pipe, jobs in sorted(uses.items()):
        # any subset of the hops is a valid relaxation: each alone, and all together
        for group in [*([job] for job in jobs), jobs]:
            heads, loads, tails = zip(*group, strict=True)
            yield min(heads) + sum(loads) + min(tails), f"occupancy of link {problem.pipes[pipe]}"


def collective_bounds(problem: Problem, chains: Chains) -> Iterator[tuple[int, str]]:
    """Yield what the collectives of all devices take on a pipe that they contend for, where they do.

    The pipe serves them, and the messages, one after the other. All of that is one bound. The last of the all-gathers
    ends after all of them, and behind it a stage has its whole work and its reduction; the first of the reductions
    begins after the whole work of its stage, and all of them follow it.
    """
    if problem.collectives is None or not problem.collectives.pipes:
        return
    stages = range(problem.flow_length)  # copies are reduced together
    gather, reduce = sum(chains.gather), sum(chains.reduce[stage] for stage in stages)
    work = [0] * len(problem.stages)
    if problem.is_plain:
        work = [problem.microbatches * (chains.forward[stage] + chains.backward[stage]) for stage in stages]
    last = min(work[stage] + chains.reduce[stage] for stage in stages)
    first = min(chains.head[stage] + work[stage] for stage in stages)
    hops = [hop for hop in (*problem.forward_hops, *problem.backward_hops) if hop is not None]
    for pipe in problem.collectives.pipes:
        reason = f"collectives on link {problem.pipes[pipe]}"
        messages = problem.microbatches * sum(hop.occupancy_ns for hop in hops if hop.pipe == pipe)
        yield gather + reduce + messages, reason
        yield gather + last, reason
        yield first + reduce, reason


def memory_bounds(problem: Problem, chains: Chains) -> Iterator[tuple[int, str]]:
    """Yield the round-trip bound of every device that holds one stage and has a memory limit.

    With room for M bytes and a bytes an activation, at most K = M // a microbatches are between F and release.

    * *Period.* F of microbatch (j+1)K cannot start before (K+1)a - M bytes of microbatches jK.. are freed, none of
      which has its D before F(jK) starts plus the round trip; freeing them takes at least `release` of work. So
      F(jK) starts no earlier than ``head + j (round_trip + release)``.
    * *Fill.* From then on all work of microbatches >= jK is to do, but during the first round trip only their first
      K forwards can run: ``round_trip - K f`` of it are lost.
    * *Drain.* Between the last F and its own D only the D and W of at most M - a live bytes can run: what remains
      of that round trip is lost, too, if the two round trips cannot overlap (the last microbatch >= (j+1)K).
    """
    n = problem.microbatches
    reserve = receive_reserve(problem)
    for device, owner in enumerate(problem.devices):
        stages = problem.stages_of(device)
        if owner.capacity_bytes is None or len(stages) != 1:
            continue
        stage = problem.stages[stages[0]]
        room, held = owner.capacity_bytes - reserve[device] - stage.static_bytes, stage.held_bytes
        live = room // stage.activation_bytes if stage.activation_bytes else n
        if not 1 <= live < n:
            continue
        index = stages[0]
        work = chains.forward[index] + chains.backward[index]
        trip = chains.round_trip[index]
        ways = _Backward(chains.gradient[index], chains.backward[index], stage.activation_bytes, held)
        release = ways.cheapest_release((live + 1) * stage.activation_bytes - room, live)
        drain = max(0, trip - chains.forward[index] - ways.most_work(room - stage.activation_bytes))
        after = chains.reduce[index] if stage.can_split else chains.tail[index] - chains.backward[index]
        best = 0
        for period in range((n - 1) // live + 1):
            left = n - period * live
            fill = max(0, trip - min(live, left) * chains.forward[index])
            lost = fill + drain if left > live else max(fill, drain)
            best = max(best, chains.head[index] + period * (trip + release) + lost + left * work)
        yield best + after, f"memory round trip of device {owner.name}"


class _Backward:
    """What the backward of one stage frees and costs: g frees `freed` (or all, as a B), the whole b frees all."""

    def __init__(self, gradient: int, backward: int, activation: int, held: int) -> None:
        self.gradient, self.backward = gradient, backward
        self.activation, self.held = activation, held

    def cheapest_release(self, needed: int, live: int) -> int:
        """Return the least work [ns] that frees `needed` bytes using at most `live` microbatches, at least one g.

        `partial` of them run g only and free activation - held, the others run b and free everything.
        """
        freed = max(0, self.activation - self.held)
        best = live * self.backward
        for whole in range(live + 1):
            missing = needed - whole * self.activation
            partial = -(-missing // freed) if missing > 0 and freed else (live + 1 if missing > 0 else 0)
            if whole + partial <= live:
                best = min(best, max(self.gradient, whole * self.backward + partial * self.gradient))
        return best

    def most_work(self, room: int) -> int:
        """Return the most backward work [ns] that activations alive in `room` bytes can offer.

        A live activation offers b for `activation` bytes, one past its D offers b - g for `held` bytes; taking
        fractions only makes the bound weaker.
        """
        rest = self.backward - self.gradient
        if self.held == 0:
            return room * self.backward // max(1, self.activation) if rest == 0 else 1 << 62
        if room * self.backward * self.held >= room * rest * self.activation:
            return -(-room * self.backward // self.activation)
        return -(-room * rest // self.held)
