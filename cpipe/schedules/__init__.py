"""Static schedules of the field: pure functions of the number of stages, microbatches and the placement."""

from cpipe.schedules.registry import SCHEDULES, StaticSchedule, static_schedule

__all__ = ["SCHEDULES", "StaticSchedule", "static_schedule"]
