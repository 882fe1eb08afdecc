"""Receive windows as gates: which op must end before the next message of a channel may leave."""

from __future__ import annotations

from collections.abc import Sequence

from cpipe.ir.ops import KINDS
from cpipe.sim.tables import Tables

__all__ = ["window_gates"]


def window_gates(tables: Tables, orders: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the gates that `Problem.receive_window` sets on `orders`.

    With a window of K, message i of a channel (in its sender's order) leaves only after the consumers of messages
    0..i-K have ended: on the receiver, after the last of them in its order.

    Returns
    -------
    dict
        Slot that a message feeds -> op of the receiving device that must end first; see `cpipe.sim.simulate`.
    """
    window = tables.problem.receive_window
    assert window is not None
    consumer = {tables.slot[op]: (index, op) for order in orders for index, op in enumerate(order)}
    gates: dict[int, int] = {}
    for order in orders:
        channels: dict[tuple[int, bool], list[int]] = {}
        for op in order:
            hop = tables.hop[op]
            if hop is not None:
                channels.setdefault((hop.target, op % KINDS == 0), []).append(tables.target[op])
        for slots in channels.values():
            last = (-1, -1)
            for index in range(window, len(slots)):
                read = consumer.get(slots[index - window])
                if read is not None:
                    last = max(last, read)
                    gates[slots[index]] = last[1]
    return gates
