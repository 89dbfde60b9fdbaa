"""The presets as methods: references, the paper's ablations, and the paper's method itself."""

from __future__ import annotations

import dataclasses

from codtdq.methods.registry import FROM_PAPER, OWN, MethodInfo, add_preset_method
from codtdq.planning.presets import PRESETS, preset

_PAPER = "When W4A4 Breaks Camouflaged Object Detection, arXiv 2604.16855, 2026"
_TITLES = {
    "fp32": "FP32", "w8a8": "W8A8 (naive)", "w4a8": "W4A8 (naive)", "w4a4": "W4A4 (naive)",
    "per-tensor": "per-tensor range", "dstg-only": "DSTG only", "dcrp-attn": "DCRP-Attn",
    "dcrp-only": "DCRP only", "dcrp-only-fixed": "DCRP only (fixed)", "c1-only": "C1 only",
    "c2-only": "C2 only", "cod-tdq": "COD-TDQ", "cod-tdq-literal": "COD-TDQ (literal)",
    "cod-tdq-guarded": "COD-TDQ (guarded)",
}  # fmt: skip


def _declare(name: str) -> MethodInfo:
    config = preset(name)
    low = config.act_bits is not None
    grouped = dict(config.act_modes)["linear"] == "per_token_group"
    ours, reference = name == "cod-tdq-guarded", name == "fp32"
    group = config.act_group_size
    granularity = f"token x {group} channels" if grouped else "per tensor"
    act_bits = f"{config.act_bits} + 32/{group}" if grouped else f"{config.act_bits}"
    return MethodInfo(
        name=name,
        title=_TITLES.get(name, name),
        source="-" if reference else OWN if ours else _PAPER,
        evidence="-" if reference else OWN if ours else FROM_PAPER,
        ranges=config.act_range if low else "-",
        granularity=granularity if low else "-",
        calibration_images=128 if config.needs_calibration else 0,
        act_bits=act_bits if low else "32",
        weight_bits="32" if config.weight_bits is None else f"{config.weight_bits} + 32/K",
        description=PRESETS[name].description,
    )


for _name in PRESETS:
    add_preset_method(_name, _declare(_name))

# The step from dstg-only to cod-tdq-guarded changes two things on a model that declares shared
# ranges (CFRN's convolutions): this one changes the granularity alone.
add_preset_method(
    "dstg-only",
    dataclasses.replace(
        _declare("dstg-only"),
        name="dstg-everywhere",
        title="DSTG everywhere",
        source=OWN,
        evidence=OWN,
        description="token-group ranges in every operator, whatever the model declares",
    ),
    follows_model=False,
)
