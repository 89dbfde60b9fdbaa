"""Named settings: the references, the method, and every ablation of the paper's variant table."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codtdq.errors import ConfigError
from codtdq.planning.cod_tdq_config import KINDS, CodTdqConfig

_PER_TENSOR = dict.fromkeys(KINDS, "per_tensor")
_NO_DCRP: dict[str, Any] = {"tau": None, "zero_ratio": None}
_SHARED: dict[str, Any] = {"act_modes": _PER_TENSOR}  # ablations without DSTG: one shared range
# The method proper: where a model declares a shared range (CFRN's convs), DCRP stays out (S1.1).
_GROUPS: dict[str, Any] = {"dcrp_modes": ("per_token_group",)}
_NAIVE: dict[str, Any] = {**_SHARED, **_NO_DCRP}


@dataclass(frozen=True)
class Preset:
    """A named setting and one line about it."""

    description: str
    fields: Mapping[str, Any]
    # whether the activation modes that a model declares as the paper's setting replace token groups
    follows_model: bool = True
    # S1.1 gives CFRN's convolutions ranges "per-tensor or per-channel": this reading of a model
    # that declares ranges per channel
    conv_reading: str = "per_channel"


PRESETS: dict[str, Preset] = {
    "fp32": Preset(
        "no quantization: the reference",
        {"weight_bits": None, "act_bits": None, "float_storage": "fp32", **_NAIVE},
    ),
    "w8a8": Preset(
        "naive 8-bit weights and activations, one range per tensor",
        {"weight_bits": 8, "act_bits": 8, **_NAIVE},
    ),
    "w4a8": Preset("naive 4-bit weights, 8-bit activations", {"act_bits": 8, **_NAIVE}),
    "w4a4": Preset("naive 4-bit weights and activations, one range per tensor", _NAIVE),
    "per-tensor": Preset(
        "ablation: an explicit global range, fixed by calibration",
        {"act_range": "static", **_NAIVE},
    ),
    "dstg-only": Preset("ablation: token-group ranges without projection", _NO_DCRP),
    "dstg-only-per-tensor-conv": Preset(
        "ablation: the same, reading 'per-tensor' for convolutions that share a range",
        _NO_DCRP,
        conv_reading="per_tensor",
    ),
    "dcrp-attn": Preset(
        "ablation: shared range, projected by C1 and C2 in attention only",
        {"dcrp_roles": ("attention",), **_SHARED},
    ),
    "dcrp-only": Preset("ablation: shared range, projected by C1 and C2 everywhere", _SHARED),
    "dcrp-only-fixed": Preset(
        "ablation: the projected shared range, fixed by calibration",
        {"act_range": "static", "static_reduce": "mean", **_SHARED},
    ),
    "c1-only": Preset(
        "ablation: shared range under the step-to-dispersion bound only",
        {"zero_ratio": None, **_SHARED},
    ),
    "c2-only": Preset(
        "ablation: shared range under the zero-bin bound only", {"tau": None, **_SHARED}
    ),
    "cod-tdq": Preset("the paper's method (DSTG + DCRP), made well defined", _GROUPS),
    "cod-tdq-per-tensor-conv": Preset(
        "the paper's method, reading 'per-tensor' for convolutions that share a range",
        _GROUPS,
        conv_reading="per_tensor",
    ),
    "cod-tdq-literal": Preset(
        "the paper to the letter: Algorithm S1, every operator at 4 bits, fp16 scales, float norms",
        {
            "literal": True,
            "first_layer": "quantize",
            "float_storage": "fp32",
            "weight_scale_dtype": "fp16",
            "scales": "float",
            **_GROUPS,
        },
    ),
    "cod-tdq-linear-dcrp": Preset(
        "control: token groups where the model has them, bounds in Linear operators only",
        {**_GROUPS, "dcrp_kinds": ("linear",)},
    ),
    "cod-tdq-fc2-a8": Preset(
        "control: the inputs of second MLP layers keep 8 bits",
        {**_GROUPS, "keep_a8_patterns": ("*fc2",)},
    ),
    "cod-tdq-bias": Preset(
        "control: with the Linear I/O correction of the mean (S1.1)",
        {**_GROUPS, "io_correction": "bias"},
    ),
    "cod-tdq-affine": Preset(
        "control: with the Linear I/O correction of mean and slope (S1.1)",
        {**_GROUPS, "io_correction": "affine"},
    ),
    "cod-tdq-guarded": Preset(
        "token groups everywhere, a bound kept only where it lowers the error",
        {"projection": "guarded", **_GROUPS},
        follows_model=False,
    ),
}


def list_presets() -> list[str]:
    """Names of all presets."""
    return list(PRESETS)


def preset(
    name: str, *, declared_modes: Mapping[str, str] | None = None, **changes: Any
) -> CodTdqConfig:
    """The config of a preset.

    declared_modes: activation modes by kind that a model declares as the paper's setting for it.
        They replace the token groups of presets that follow the paper; a preset with a shared
        range, and one that is ours (`cod-tdq-guarded`), stays what it is.
    changes: further fields of CodTdqConfig to set.
    """
    if name not in PRESETS:
        close = difflib.get_close_matches(str(name), PRESETS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(PRESETS)}"
        raise ConfigError(f"unknown preset {name!r}; {hint}")
    config = CodTdqConfig(name=name, **PRESETS[name].fields)
    found = PRESETS[name]
    declared = declared_modes if found.follows_model else None
    return follow_model(config, declared, found.conv_reading, **changes)


def follow_model(
    config: CodTdqConfig,
    declared: Mapping[str, str] | None,
    conv_reading: str = "per_channel",
    **changes: Any,
) -> CodTdqConfig:
    """Set fields, and take over the activation modes that a model declares.

    A setting with one shared range everywhere stays what it is, and so do modes that `changes`
    sets. conv_reading: what a range per channel that the model declares is read as.
    """
    config = config.replace(**changes) if changes else config
    modes = dict(config.act_modes)
    if not declared or "act_modes" in changes or "per_token_group" not in modes.values():
        return config
    read = {k: conv_reading if m == "per_channel" else m for k, m in declared.items()}
    return config.replace(act_modes={**modes, **read})
