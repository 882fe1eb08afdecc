"""The problem as series: what happens to every microbatch in the same way, on which resource, after what.

A series is one kind of op of one stage, or the messages of one boundary: n of them of the same duration, in microbatch
order. All that relates two series relates them for every microbatch, so bounds can keep arrays of length n where a
network of tasks needs sets.

A backward counts as two parts: G of ``min(D, B)``, after which the gradient may leave, and W, the rest of
``min(D + W, B)``; a full backward is a G at its start and a W at its end. The k-th W is the k-th in time: of any k of
them the G have ended, so it is behind G k even where full backwards overtake earlier W.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple

from cpipe.ir import Hop, Problem, Stage
from cpipe.sim.memory import memory_rooms
from cpipe.solve.chains import Chains

__all__ = ["Edge", "Holding", "Sender", "Series", "SeriesModel", "Split", "build_series"]


class Series(NamedTuple):
    """Ops or messages of one kind.

    Attributes
    ----------
    duration
        Shortest time that each holds its resource [units].
    resource
        Index into `SeriesModel.resources`.
    transient
        Memory while one runs [bytes].
    release, delivery
        Earliest start of the first, and least time after the end of the last [units].
    """

    duration: int
    resource: int
    transient: int = 0
    release: int = 0
    delivery: int = 0


class Edge(NamedTuple):
    """``start(target, m) >= end(source, m - lag) + delay`` wherever both exist, [units]."""

    source: int
    target: int
    delay: int = 0
    lag: int = 0


class Holding(NamedTuple):
    """`size` bytes from the start of `opens` m to the end of `closes` m, for every m."""

    size: int
    opens: int
    closes: int


class Sender(NamedTuple):
    """Two series of messages that leave one device on one pipe, in the order of the ops that send them."""

    first: int
    second: int
    first_producer: int
    second_producer: int


class Split(NamedTuple):
    """A backward that is longer as D and W than as B, by `extra` each time [units].

    `gradient` and `weight` are its two series; `reader` takes the gradient, None on the first stage.
    """

    gradient: int
    weight: int
    extra: int
    reader: int | None = None
    delay: int = 0


@dataclass
class SeriesModel:
    """All series of a problem, in an order in which every edge without lag goes forwards.

    Attributes
    ----------
    microbatches
        n, the length of every series.
    unit_ns
        Length of a unit [ns]: the greatest common divisor of all times.
    resources
        The series of each device, then of each pipe.
    rooms
        Per resource: bytes for holdings and transients; None without a limit, and where everything fits.
    holdings
        Per resource.
    names
        Per resource, for people.
    """

    microbatches: int
    unit_ns: int
    names: list[str]
    series: list[Series] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    resources: list[list[int]] = field(default_factory=list)
    rooms: list[int | None] = field(default_factory=list)
    holdings: list[list[Holding]] = field(default_factory=list)
    senders: list[Sender] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)

    @property
    def num_relations(self) -> int:
        """Number of pairs of an op and a series of its resource: what it costs to look at everything once."""
        return self.microbatches * sum(len(members) ** 2 for members in self.resources)

    def serial_length(self) -> int:
        """Return an upper bound on the shortest makespan of what fits, met when nothing overlaps [units]."""
        once = sum(one.duration for one in self.series) + sum(edge.delay for edge in self.edges)
        extra = sum(split.extra for split in self.splits)
        return (once + extra) * self.microbatches + sum(one.release + one.delivery for one in self.series)

    def mirrored(self) -> SeriesModel:
        """Return the same with time running backwards: series i becomes series C - 1 - i."""
        last = len(self.series) - 1
        return SeriesModel(
            self.microbatches,
            self.unit_ns,
            self.names,
            series=[one._replace(release=one.delivery, delivery=one.release) for one in reversed(self.series)],
            edges=[Edge(last - edge.target, last - edge.source, edge.delay, edge.lag) for edge in self.edges],
            resources=[[last - index for index in reversed(members)] for members in self.resources],
            rooms=self.rooms,
            holdings=[[Holding(one.size, last - one.closes, last - one.opens) for one in row] for row in self.holdings],
        )


def build_series(problem: Problem) -> SeriesModel:
    """Return the series of a plain problem (one flow, no fused pairs): at most three a stage and two a boundary."""
    assert problem.is_plain, "several flows and fused pairs have no series"
    return _Builder(problem).model


class _Builder:
    def __init__(self, problem: Problem) -> None:
        self.problem, self.times = problem, Chains(problem)
        names = [f"device {owner.name}" for owner in problem.devices] + [f"link {pipe}" for pipe in problem.pipes]
        self.model = model = SeriesModel(problem.microbatches, _unit_ns(self.times, problem), names)
        model.resources = [[] for _ in names]
        model.holdings = [[] for _ in names]
        self._sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
        forward: list[int] = []
        for stage in range(problem.num_stages):
            source = self._send(problem.forward_hops[stage - 1], forward[-1]) if stage else None
            forward.append(self._add_forward(stage))
            self._receive(source, forward[-1])
        gradient = forward[-1]
        source = Edge(gradient, -1)
        for stage in reversed(range(problem.num_stages)):
            gradient = self._add_backward(stage, forward[stage], source)
            if stage:
                source = self._send(problem.backward_hops[stage - 1], gradient)
        rooms: list[int | None] = list(memory_rooms(problem))
        for device, room in enumerate(rooms):
            if room is not None and room >= self._most_memory(device):
                rooms[device] = None
        model.rooms = rooms + [None] * len(problem.pipes)

    def _units(self, time_ns: int) -> int:
        return time_ns // self.model.unit_ns

    def _add(self, one: Series) -> int:
        self.model.series.append(one)
        self.model.resources[one.resource].append(len(self.model.series) - 1)
        return len(self.model.series) - 1

    def _add_forward(self, index: int) -> int:
        stage = self.problem.stages[index]
        duration, gather = self._units(self.times.forward[index]), self._units(self.times.gathered[index])
        return self._add(Series(duration, stage.device, stage.forward_transient_bytes, release=gather))

    def _add_backward(self, index: int, forward: int, source: Edge) -> int:
        """Add G and W of a stage, and what F, G and W hold; return G.

        From the end of G to the end of W at least the smaller of activation and held part is there, D or B.
        """
        stage, times, model = self.problem.stages[index], self.times, self.model
        rest = self._units(times.backward[index] - times.gradient[index])
        held = min(stage.held_bytes, stage.activation_bytes) if stage.can_split else 0
        has_weight = rest > 0 or held > 0
        reduce = self._units(times.reduce[index])
        length, delivery = self._units(times.gradient[index]), 0 if has_weight else reduce
        gradient = self._add(Series(length, stage.device, _gradient_transient(stage), delivery=delivery))
        self._receive(source, gradient)
        if stage.activation_bytes > held:
            model.holdings[stage.device].append(Holding(stage.activation_bytes - held, forward, gradient))
        if has_weight:
            weight = self._add(Series(rest, stage.device, stage.weight_grad_transient_bytes, delivery=reduce))
            model.edges.append(Edge(gradient, weight))
            if held:
                model.holdings[stage.device].append(Holding(held, forward, weight))
            extra = self._units(_extra(stage))
            if extra:
                model.splits.append(Split(gradient, weight, extra))
        return gradient

    def _send(self, hop: Hop | None, producer: int) -> Edge:
        """Add the messages of a hop where they may have to wait; return the edge to whatever reads them."""
        if hop is None:
            return Edge(producer, -1)
        if not hop.occupancy_ns and self.problem.receive_window is None:
            return Edge(producer, -1, self._units(hop.latency_ns))
        message = self._add(Series(self._units(hop.occupancy_ns), self.problem.num_devices + hop.pipe))
        self.model.edges.append(Edge(producer, message))
        others = self._sent.setdefault((hop.pipe, hop.source), [])
        self.model.senders += (Sender(message, other, producer, sender) for other, sender in others)
        others.append((message, producer))
        return Edge(message, -1, self._units(hop.latency_ns))

    def _receive(self, source: Edge | None, target: int) -> None:
        if source is None:
            return
        model, window = self.model, self.problem.receive_window
        model.edges.append(source._replace(target=target))
        is_message = model.series[source.source].resource >= self.problem.num_devices
        if is_message and window is not None:
            # where stages share a channel other messages only come between: right there, too
            model.edges.append(Edge(target, source.source, 0, window))
        producer = next(edge.source for edge in model.edges if edge.target == source.source) if is_message else -1
        for index, split in enumerate(model.splits):
            if split.gradient == source.source:
                model.splits[index] = split._replace(reader=target, delay=source.delay)
            elif split.gradient == producer:
                model.splits[index] = split._replace(reader=source.source)

    def _most_memory(self, device: int) -> int:
        """Return what the device would need if it kept everything [bytes]."""
        model = self.model
        resident = self.problem.microbatches * sum(holding.size for holding in model.holdings[device])
        return resident + max((model.series[index].transient for index in model.resources[device]), default=0)


def _extra(stage: Stage) -> int:
    """Return how much longer D and W are than B [ns]."""
    apart = stage.input_grad_ns + stage.weight_grad_ns
    return max(0, apart - stage.full_backward_ns) if stage.can_split else 0


def _gradient_transient(stage: Stage) -> int:
    both = stage.whole_transient_bytes
    if not stage.can_split:
        return both
    return min(both, max(0, stage.held_bytes - stage.activation_bytes) + stage.input_grad_transient_bytes)


def _unit_ns(times: Chains, problem: Problem) -> int:
    hops = [hop for hop in (*problem.forward_hops, *problem.backward_hops) if hop is not None]
    links = [time for hop in hops for time in (hop.latency_ns, hop.occupancy_ns)]
    extra = map(_extra, problem.stages)
    return gcd(*times.forward, *times.gradient, *times.backward, *times.gather, *times.reduce, *links, *extra) or 1
