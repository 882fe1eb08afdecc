"""Static schedules of the field: pure functions of the number of stages, microbatches and the placement."""

from cpipe.schedules.registry import SCHEDULES, StaticSchedule, applicable, static_schedule

__all__ = ["SCHEDULES", "StaticSchedule", "applicable", "static_schedule"]
