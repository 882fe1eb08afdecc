"""Why a plan takes as long as it does: critical path, idle time by cause, and what a change of the job would give."""

from cpipe.analysis.explain import explain_plan, explain_stated
from cpipe.analysis.view import replayed_view

__all__ = ["explain_plan", "explain_stated", "replayed_view"]
