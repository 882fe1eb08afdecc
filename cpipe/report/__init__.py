"""What people and scripts read: figures per device, tables, the Gantt chart and the JSON reports."""

__all__: list[str] = []
