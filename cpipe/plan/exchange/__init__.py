"""Plans as other programs' schedules, written and read as text, without the programs themselves."""

from cpipe.plan.exchange.cells import Cell, TorchTable, read_torch_csv
from cpipe.plan.exchange.deepspeed import deepspeed_instructions, deepspeed_text
from cpipe.plan.exchange.deepspeed_faults import deepspeed_faults
from cpipe.plan.exchange.layer_layout import layer_layout, stage_layers
from cpipe.plan.exchange.megatron import megatron_arguments
from cpipe.plan.exchange.megatron_faults import megatron_faults
from cpipe.plan.exchange.megatron_order import megatron_order
from cpipe.plan.exchange.programs import plan_of_table, with_times
from cpipe.plan.exchange.table_warnings import table_warnings
from cpipe.plan.exchange.timeline_csv import TIMELINE_COLUMNS, timeline_csv
from cpipe.plan.exchange.torch_csv import LAYOUTS, torch_csv, torch_faults

__all__ = [
    "LAYOUTS",
    "TIMELINE_COLUMNS",
    "Cell",
    "TorchTable",
    "deepspeed_faults",
    "deepspeed_instructions",
    "deepspeed_text",
    "layer_layout",
    "megatron_arguments",
    "megatron_faults",
    "megatron_order",
    "plan_of_table",
    "read_torch_csv",
    "stage_layers",
    "table_warnings",
    "timeline_csv",
    "torch_csv",
    "torch_faults",
    "with_times",
]
