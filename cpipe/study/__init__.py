"""Studies: many compilations of one job, for what their results say together."""

from __future__ import annotations
