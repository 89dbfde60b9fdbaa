"""CodTdqConfig: all fields of the paper's method and of its ablations (S1.1, S4.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from codtdq.errors import ConfigError
from codtdq.numerics.spec import MODES, SCALE_DTYPES, check_choice
from codtdq.planning.config import ROLES, Pairs, QuantConfig, as_names

KINDS = ("linear", "conv", "depthwise", "first")  # what an activation mode is chosen by
ACT_RANGES = ("dynamic", "static")
STATIC_REDUCES = ("max", "mean")
IO_CORRECTIONS = ("none", "bias", "affine")


@dataclass(frozen=True, kw_only=True)
class CodTdqConfig(QuantConfig):
    """The defaults are the paper's COD-TDQ, made well defined."""

    # activations: symmetric, a range per tensor, per channel or per token group
    act_modes: Pairs = (
        ("linear", "per_token_group"),
        ("conv", "per_token_group"),
        ("depthwise", "per_token_group"),
        ("first", "per_token_group"),
    )
    act_percentile: float | None = None  # p of Eq. DSTG_clip; None: maximum
    act_range: str = "dynamic"  # "static": radii calibrated once and fixed
    static_reduce: str = "max"  # how per-batch radii become one: "max" or "mean"
    # DCRP
    tau: float | None = 1.0  # C1; None leaves it out
    zero_ratio: float | None = 0.2  # C2; None leaves it out
    projection: str = "min"  # "min" (Eq. dcrp) or "guarded"
    literal: bool = False  # Algorithm S1 to the letter
    dcrp_roles: tuple[str, ...] | None = None  # roles that C1 and C2 apply to; None: all
    dcrp_modes: tuple[str, ...] | None = None  # activation modes that they apply to; None: all
    dcrp_kinds: tuple[str, ...] | None = None  # linear, conv, depthwise, first; None: all
    io_correction: str = "none"  # Linear output correction: "bias" or "affine"
    scales: str = "integer"
    float_storage: str = "block8"  # norms, biases and embeddings in 8-bit blocks
    weight_scale_dtype: str = "fp32"  # the paper's 326,632 bytes are one fp16 per output channel

    act_groups: ClassVar[bool] = True
    integer_scales: ClassVar[bool] = True
    plans_formats: ClassVar[bool] = True
    pair_fields: ClassVar[tuple[str, ...]] = (*QuantConfig.pair_fields, "act_modes")
    overridable: ClassVar[tuple[str, ...]] = (
        *QuantConfig.overridable,
        "act_mode",
        "act_percentile",
        "tau",
        "zero_ratio",
        "projection",
        "literal",
    )

    def __post_init__(self) -> None:
        for field in ("dcrp_roles", "dcrp_modes", "dcrp_kinds"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, as_names(field, getattr(self, field)))
        super().__post_init__()
        check_choice("act_range", self.act_range, ACT_RANGES)
        check_choice("static_reduce", self.static_reduce, STATIC_REDUCES)
        check_choice("io_correction", self.io_correction, IO_CORRECTIONS)
        check_choice("weight_scale_dtype", self.weight_scale_dtype, SCALE_DTYPES)
        self.check_flags("literal")
        for role in self.dcrp_roles or ():
            check_choice("dcrp_roles", role, ROLES)
        for mode in self.dcrp_modes or ():
            check_choice("dcrp_modes", mode, MODES)
        for kind in self.dcrp_kinds or ():
            check_choice("dcrp_kinds", kind, KINDS)

    def _check_modes(self) -> dict[str, str]:
        modes = dict(self.act_modes)
        for kind, mode in modes.items():
            check_choice("act_modes key", kind, KINDS)
            check_choice(f"act_modes[{kind!r}]", mode, MODES)
        missing = [kind for kind in KINDS if kind not in modes]
        if missing:
            raise ConfigError(f"act_modes lacks {', '.join(missing)}; it needs {', '.join(KINDS)}")
        if self.act_range == "static" and "per_token_group" in modes.values():
            raise ConfigError(
                "act_range='static' fixes radii per layer or channel; "
                "per_token_group ranges are dynamic: set act_modes to per_tensor or per_channel"
            )
        return modes

    def weight_fields(self) -> dict[str, Any]:
        """Fields of a weight's record."""
        return {**super().weight_fields(), "scale_dtype": self.weight_scale_dtype}

    def activation_fields(self, kind: str, role: str) -> dict[str, Any]:
        """Fields of an activation's record: mode by kind, bounds by role and mode."""
        kind = "first" if role == "first" else kind
        mode = self._check_modes()[kind]
        bounded = all(
            allowed is None or found in allowed
            for found, allowed in (
                (role, self.dcrp_roles),
                (mode, self.dcrp_modes),
                (kind, self.dcrp_kinds),
            )
        )
        return {
            "bits": self.act_width(role),
            "mode": mode,
            "group_size": self.act_group_size,
            "percentile": self.act_percentile,
            "tau": self.tau if bounded else None,
            "zero_ratio": self.zero_ratio if bounded else None,
            "projection": self.projection,
            "literal": self.literal,
            "scales": self.scales,
        }

    @property
    def has_act_groups(self) -> bool:
        """Some kind of operator has token groups, or an override gives them to one."""
        overridden = [dict(fields).get("act_mode") for _, fields in self.layer_overrides]
        return "per_token_group" in (*dict(self.act_modes).values(), *overridden)

    @property
    def static(self) -> bool:
        """Whether radii are calibrated and fixed."""
        return self.act_range == "static" and self.act_bits is not None

    @property
    def needs_calibration(self) -> bool:
        """Static radii and the correction of outputs look at images; nothing else does."""
        return self.static or self.io_correction != "none"
