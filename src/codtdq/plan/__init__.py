"""What is quantized, and how: config, presets, roles, and the plan that a person can read."""

from codtdq.plan.config import QuantConfig
from codtdq.plan.plan import QuantPlan, Site
from codtdq.plan.planner import make_plan
from codtdq.plan.presets import PRESETS, list_presets, preset

__all__ = [
    "PRESETS",
    "QuantConfig",
    "QuantPlan",
    "Site",
    "list_presets",
    "make_plan",
    "preset",
]
