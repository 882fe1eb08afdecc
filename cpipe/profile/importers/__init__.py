"""Profiles from what people have before they measure: a model's configuration, or a sheet of times per layer.

Both become layers; layers are grouped into stages; stages, devices and links make the profile. Whatever had to be
assumed on the way is an `Assumption`, which is printed and kept in the profile.
"""

from __future__ import annotations

from cpipe.profile.importers.architecture import Architecture, LayerShape, Linear
from cpipe.profile.importers.assumptions import Assumption
from cpipe.profile.importers.costs import ATTENTIONS, DTYPES, RECOMPUTES, Costing, costing_assumptions, model_layers
from cpipe.profile.importers.hf_config import HF_FORMAT, MODEL_TYPES, parse_hf_config
from cpipe.profile.importers.layers import Layer, layer_load_ns, stages_of, unit_counts
from cpipe.profile.importers.sheet import COLUMNS, SHEET_FORMAT, parse_sheet
from cpipe.profile.importers.site_specs import parse_cost, parse_devices, parse_links

__all__ = [
    "ATTENTIONS",
    "COLUMNS",
    "DTYPES",
    "HF_FORMAT",
    "MODEL_TYPES",
    "RECOMPUTES",
    "SHEET_FORMAT",
    "Architecture",
    "Assumption",
    "Costing",
    "Layer",
    "LayerShape",
    "Linear",
    "costing_assumptions",
    "layer_load_ns",
    "model_layers",
    "parse_cost",
    "parse_devices",
    "parse_hf_config",
    "parse_links",
    "parse_sheet",
    "stages_of",
    "unit_counts",
]
