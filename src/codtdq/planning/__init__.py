"""What is quantized, and how: configs, presets, roles, and the plan that a person can read."""

from codtdq.planning.cod_tdq_config import CodTdqConfig
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import QuantPlan, Site
from codtdq.planning.planner import make_plan
from codtdq.planning.presets import PRESETS, list_presets, preset

__all__ = [
    "PRESETS",
    "CodTdqConfig",
    "QuantConfig",
    "QuantPlan",
    "Site",
    "list_presets",
    "make_plan",
    "preset",
]
