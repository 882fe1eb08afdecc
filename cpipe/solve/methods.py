"""The methods of `solve` by name; imports nothing, so that help and completion stay quick."""

from __future__ import annotations

__all__ = ["METHODS", "STATIC_METHODS"]

STATIC_METHODS: dict[str, str] = {
    "gpipe": "all forwards, then all backwards",
    "1f1b": "one forward, one full backward",
    "1f1b-split": "1F1B with W right after D",
    "zb-h1": "zero-bubble H1: W delayed into the bubble, at 1F1B's memory",
    "zb-h2": "zero-bubble H2: no bubble after the fill, at twice 1F1B's memory",
    "interleaved-1f1b": "1F1B on a loop of stages, in groups of microbatches",
    "interleaved-zb": "interleaved 1F1B with W in the bubble, at 1F1B's memory",
    "looped-bfs": "all forwards stage by stage on a loop, then all backwards",
    "zb-v": "zero-bubble V: two stages a device in a V, at 1F1B's memory",
    "v-half": "as zb-v, at half of 1F1B's memory",
    "v-min": "as zb-v, at a third of 1F1B's memory",
    "hanayo": "waves of stages, full backwards",
    "dualpipe-v": "DualPipe's fused pairs on a V of two stages a device",
    "chimera": "two flows in opposite directions, two copies of the weights",
    "dualpipe": "DualPipe: two flows with fused pairs, two copies of the weights",
}

METHODS: dict[str, str] = {
    "auto": "static schedules, greedy family, local search, CP-SAT or MILP where it pays; stops when proven",
    "cpsat": "CP-SAT (extra cpipe[cpsat]), started from the best heuristic order",
    "milp": "the MILP (HiGHS), started from the best heuristic order",
    "greedy": "the list-scheduler family, and the best static schedule if that is better",
    "greedy-crosspipe": "CrossPipe's greedy (Algorithm 1, sub-blocks), and the best static schedule if that is better",
    **STATIC_METHODS,
}
"""Method name -> what it does."""
