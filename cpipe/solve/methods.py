"""The methods of `solve` by name; imports nothing, so that help and completion stay quick."""

from __future__ import annotations

__all__ = ["METHODS", "STATIC_METHODS"]

STATIC_METHODS: dict[str, str] = {
    "gpipe": "all forwards, then all backwards",
    "1f1b": "one forward, one full backward",
    "1f1b-split": "1F1B with W right after D",
    "zb-h1": "zero-bubble H1: W delayed into the bubble, at 1F1B's memory",
}

METHODS: dict[str, str] = {
    "auto": "static schedules, greedy family, local search, MILP where it pays; stops when proven",
    "milp": "the MILP (HiGHS), started from the best heuristic order",
    "greedy": "the list-scheduler family, and the best static schedule if that is better",
    "greedy-crosspipe": "CrossPipe's greedy (Algorithm 1, sub-blocks), and the best static schedule if that is better",
    **STATIC_METHODS,
}
"""Method name -> what it does."""
