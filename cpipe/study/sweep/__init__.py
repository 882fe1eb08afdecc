"""Sweeps: one profile solved at every point of a grid, by several processes or on a cluster, resumable.

`grid` says which points there are, `vary` makes the profile of each, `solve_point` solves it; `workers` and
`dask_cluster` are two ways to have that done elsewhere; `store` keeps what is finished, and `run` joins them.
"""

from __future__ import annotations

from cpipe.study.sweep.grid import Axes, Entry, Point, Settings, grid_points
from cpipe.study.sweep.run import Sweep, make_sweep, run_sweep
from cpipe.study.sweep.solve_point import point_outcome
from cpipe.study.sweep.vary import point_profile

__all__ = [
    "Axes",
    "Entry",
    "Point",
    "Settings",
    "Sweep",
    "grid_points",
    "make_sweep",
    "point_outcome",
    "point_profile",
    "run_sweep",
]
