"""The paper's method with its references and ablations: one function, one config each."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from codtdq.errors import CalibrationError
from codtdq.methods.registry import FROM_PAPER, OWN, Method, MethodInfo, add_method
from codtdq.methods.workbench import Workbench
from codtdq.operators.calibration import CalibrationContext, run_calibration
from codtdq.operators.correction import correct_outputs
from codtdq.planning.cod_tdq_config import CodTdqConfig
from codtdq.planning.plan import Site
from codtdq.planning.presets import PRESETS, preset
from codtdq.planning.units import projected_input
from codtdq.schemes.symmetric import SymmetricWeight

_PAPER = "When W4A4 Breaks Camouflaged Object Detection, arXiv 2604.16855, 2026"
_TITLES = {
    "fp32": "FP32",
    "w8a8": "W8A8 (naive)",
    "w4a8": "W4A8 (naive)",
    "w4a4": "W4A4 (naive)",
    "per-tensor": "per-tensor range",
    "dstg-only": "DSTG only",
    "dstg-only-per-tensor-conv": "DSTG only (conv per tensor)",
    "dcrp-attn": "DCRP-Attn",
    "dcrp-only": "DCRP only",
    "dcrp-only-fixed": "DCRP only (fixed)",
    "c1-only": "C1 only",
    "c2-only": "C2 only",
    "cod-tdq": "COD-TDQ",
    "cod-tdq-per-tensor-conv": "COD-TDQ (conv per tensor)",
    "cod-tdq-literal": "COD-TDQ (literal)",
    "cod-tdq-linear-dcrp": "COD-TDQ (DCRP in Linear only)",
    "cod-tdq-fc2-a8": "COD-TDQ (8-bit fc2 inputs)",
    "cod-tdq-bias": "COD-TDQ + bias correction",
    "cod-tdq-affine": "COD-TDQ + affine correction",
    "cod-tdq-guarded": "COD-TDQ (guarded)",
}


def _declare(name: str) -> MethodInfo:
    config = preset(name)
    low = config.act_bits is not None
    grouped = dict(config.act_modes)["linear"] == "per_token_group"
    ours, reference = name == "cod-tdq-guarded", name == "fp32"
    group = config.act_group_size
    granularity = f"token x {group} channels" if grouped else "per tensor"
    scale_bits = 16 if config.weight_scale_dtype == "fp16" else 32
    travels = f" + 4/{group} + 32/K" if config.scales == "integer" else f" + 32/{group}"
    act_bits = f"{config.act_bits}{travels if grouped else ''}"
    return MethodInfo(
        name=name,
        title=_TITLES.get(name, name),
        source="-" if reference else OWN if ours else _PAPER,
        evidence="-" if reference else OWN if ours else FROM_PAPER,
        ranges=config.act_range if low else "-",
        granularity=granularity if low else "-",
        calibration_images=128 if config.needs_calibration else 0,
        act_bits=act_bits if low else "32",
        weight_bits="32"
        if config.weight_bits is None
        else f"{config.weight_bits} + {scale_bits}/K",
        description=PRESETS[name].description,
    )


def build(bench: Workbench) -> None:
    """Follow the plan: calibrate what is static, round weights to nearest, correct outputs."""
    config, plan = bench.config, bench.plan
    assert isinstance(config, CodTdqConfig) and plan is not None
    context = CalibrationContext(
        bench.model, channels=False, pairs=config.io_correction != "none", plan=plan
    )
    if config.needs_calibration:
        assert bench.calibration is not None
        run_calibration(bench.model, bench.calibration, context)
    radii = {
        name: radius.reduced(config.static_reduce, name)
        for name, radius in context.radii.items()
        if radius.batches
    }
    if context.radii and not radii:
        raise CalibrationError("the calibration batches reached no operator of the model")
    for site in plan.quantized:
        if site.static and site.name not in radii:
            continue  # released networks carry layers that never run: they stay float
        weight = inputs = None
        if site.weight is not None:
            weight = SymmetricWeight.quantize(_weight_of(bench, site), site.weight)
        if site.activation is not None:
            module = bench.model.get_submodule(site.name)
            inputs = projected_input(module, site.activation, radii.get(site.name))
        bench.install(site, inputs=inputs, weight=weight)
    if config.io_correction != "none":
        correct_outputs(bench.model, context.pairs, config.io_correction)


def _weight_of(bench: Workbench, site: Site) -> Tensor:
    weight: Tensor = bench.model.get_submodule(site.name).weight  # type: ignore[assignment]
    return weight


def sketch(bench: Workbench) -> None:
    """Install all schemes, with blank weights and radii."""
    assert bench.plan is not None
    for site in bench.plan.quantized:
        weight = inputs = None
        if site.weight is not None:
            spec = site.weight
            weight = SymmetricWeight(
                site.shape, spec.bits, spec.group_size, spec.scale_dtype, spec.scales
            )
        if site.activation is not None:
            blank = torch.zeros(1 if site.activation.mode == "per_tensor" else site.inputs)
            module = bench.model.get_submodule(site.name)
            inputs = projected_input(module, site.activation, blank if site.static else None)
        bench.install(site, inputs=inputs, weight=weight, blank=True)


def _add(name: str, info: MethodInfo, follows_model: bool) -> None:
    add_method(
        Method(
            info,
            preset(name).replace(name=info.name),
            build,
            sketch,
            keeps_weights=True,
            follows_model=follows_model,
            conv_reading=PRESETS[name].conv_reading,
        )
    )


for _name in PRESETS:
    _add(_name, _declare(_name), PRESETS[_name].follows_model)

# The step from dstg-only to cod-tdq-guarded changes two things on a model that declares shared
# ranges (CFRN's convolutions): this one changes the granularity alone.
_add(
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
