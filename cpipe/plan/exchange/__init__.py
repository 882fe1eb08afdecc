"""Plans as other programs' schedules: torch's CSV, written and read as text, without torch."""

from cpipe.plan.exchange.cells import Cell, TorchTable, read_torch_csv
from cpipe.plan.exchange.programs import plan_of_table, table_warnings, with_times
from cpipe.plan.exchange.torch_csv import LAYOUTS, torch_csv, torch_faults

__all__ = [
    "LAYOUTS",
    "Cell",
    "TorchTable",
    "plan_of_table",
    "read_torch_csv",
    "table_warnings",
    "torch_csv",
    "torch_faults",
    "with_times",
]
