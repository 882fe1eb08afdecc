"""Run a plan with torch: one communicator per channel, receives posted where the plan says, nothing silently wrong.

Needs the extra ``cpipe[torch]``. Nothing else in cpipe imports torch.
"""

from cpipe.runtime.executor import PlanExecutor
from cpipe.runtime.faults import RuntimeFault
from cpipe.runtime.records import OpRecord, StepResult
from cpipe.runtime.specs import TensorSpec
from cpipe.runtime.watchdog import Watchdog

__all__ = ["OpRecord", "PlanExecutor", "RuntimeFault", "StepResult", "TensorSpec", "Watchdog"]
