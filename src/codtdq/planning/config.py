"""QuantConfig: everything that decides how a model is quantized (S1.1, S4.8).

Frozen, strict, JSON in and out. It holds wishes; what a given model gets of them is the plan.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codtdq.errors import ConfigError
from codtdq.numerics.spec import (
    MODES,
    ActivationSpec,
    WeightSpec,
    check_bits,
    check_choice,
    check_positive_int,
    check_share,
)

KINDS = ("linear", "conv", "depthwise", "first")  # what an activation mode is chosen by
ROLES = ("attention", "mlp", "linear", "conv", "depthwise", "first")
FIRST_LAYER = ("quantize", "a8", "w8a8", "float")
ACT_RANGES = ("dynamic", "static")
STATIC_REDUCES = ("max", "mean")
IO_CORRECTIONS = ("none", "bias", "affine")
COMPUTE_DTYPES = ("fp32", "fp16")
FLOAT_STORAGES = ("fp32", "block8")
OVERRIDABLE = (
    "weight_bits",
    "weight_group_size",
    "weight_percentile",
    "act_bits",
    "act_mode",
    "act_group_size",
    "act_percentile",
    "tau",
    "zero_ratio",
    "projection",
    "literal",
)

Pairs = tuple[tuple[str, Any], ...]  # an ordered, hashable mapping; a dict in JSON
_PAIR_FIELDS = (
    "act_modes",
    "role_patterns",
    "weight_group_rules",
    "weight_percentile_rules",
    "act_group_rules",
    "layer_overrides",
)


@dataclass(frozen=True, kw_only=True)
class QuantConfig:
    """How to quantize a model. The defaults are the paper's COD-TDQ, made well defined.

    Patterns are shell globs over full module names ("encoder.*.fc2"). A pattern that matches no
    operator is an error. Rules and overrides are mappings; where several patterns match, the
    last one wins. Precedence: rules < w8 and keep_a8 patterns, first_layer < layer_overrides; an
    override for an operator that skip_patterns or first_layer keeps float is an error.
    """

    name: str = "custom"
    # weights: static, symmetric (Eq. weight_quant)
    weight_bits: int | None = 4  # 2..8, or None: weights stay float
    weight_group_size: int | None = None  # None: one scale per output channel
    weight_percentile: float | None = None  # clip |w| at this share of a channel
    # activations: symmetric, a range per tensor, per channel or per token group
    act_bits: int | None = 4  # 2..8, or None: activations stay float
    act_modes: Pairs = (
        ("linear", "per_token_group"),
        ("conv", "per_token_group"),
        ("depthwise", "per_token_group"),
        ("first", "per_token_group"),
    )
    act_group_size: int = 32  # g
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
    # which operators
    # the convolution that reads the image: "a8" keeps the image's own 8 bits, "w8a8" its weight
    # too; "quantize" treats it like any other operator; "float" leaves it alone
    first_layer: str = "a8"
    role_patterns: Pairs = ()  # pattern -> role, over what the model declares
    skip_patterns: tuple[str, ...] = ()  # stay float
    w8_patterns: tuple[str, ...] = ()  # 8-bit weights
    keep_a8_patterns: tuple[str, ...] = ()  # 8-bit activations
    weight_group_rules: Pairs = ()  # pattern -> weight group size
    weight_percentile_rules: Pairs = ()  # pattern -> weight clipping percentile
    act_group_rules: Pairs = ()  # pattern -> activation group size
    layer_overrides: Pairs = ()  # exact name -> {field: value} (pairs inside), applied last
    # around the quantized operators
    fp32_ln: bool = False  # compute LayerNorm in float32 whatever the input's dtype
    fp32_gn: bool = False  # the same for GroupNorm
    io_correction: str = "none"  # Linear output correction: "bias" or "affine"
    compute_dtype: str = "fp32"  # dtype in which the operators run
    float_storage: str = "block8"  # how norms, biases, embeddings are stored

    def __post_init__(self) -> None:
        for field in _PAIR_FIELDS:
            object.__setattr__(self, field, _as_pairs(field, getattr(self, field)))
        for field in (
            "skip_patterns",
            "w8_patterns",
            "keep_a8_patterns",
            "dcrp_roles",
            "dcrp_modes",
        ):
            object.__setattr__(self, field, _as_names(field, getattr(self, field)))
        layers = tuple(
            (n, _as_pairs(f"layer_overrides[{n!r}]", f)) for n, f in self.layer_overrides
        )
        object.__setattr__(self, "layer_overrides", layers)
        self._check_choices()
        self._check_rules()
        self._check_modes()
        self._check_overrides()
        # The two records repeat the numeric checks; building them once here reports early.
        WeightSpec(
            bits=8 if self.weight_bits is None else self.weight_bits,
            group_size=self.weight_group_size,
            percentile=self.weight_percentile,
        )
        ActivationSpec(
            bits=8 if self.act_bits is None else self.act_bits,
            group_size=self.act_group_size,
            percentile=self.act_percentile,
            tau=self.tau,
            zero_ratio=self.zero_ratio,
            projection=self.projection,
            literal=self.literal,
        )

    def _check_choices(self) -> None:
        check_choice("act_range", self.act_range, ACT_RANGES)
        check_choice("static_reduce", self.static_reduce, STATIC_REDUCES)
        check_choice("first_layer", self.first_layer, FIRST_LAYER)
        check_choice("io_correction", self.io_correction, IO_CORRECTIONS)
        check_choice("compute_dtype", self.compute_dtype, COMPUTE_DTYPES)
        check_choice("float_storage", self.float_storage, FLOAT_STORAGES)
        if not isinstance(self.name, str):
            raise ConfigError(f"name is {self.name!r}; accepted: a string")
        for name in ("literal", "fp32_ln", "fp32_gn"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; accepted: true, false")
        for role in self.dcrp_roles or ():
            check_choice("dcrp_roles", role, ROLES)
        for mode in self.dcrp_modes or ():
            check_choice("dcrp_modes", mode, MODES)
        for pattern, role in self.role_patterns:
            check_choice(f"role_patterns[{pattern!r}]", role, ROLES)

    def _check_rules(self) -> None:
        for pattern, size in (*self.weight_group_rules, *self.act_group_rules):
            check_positive_int(f"group size of {pattern!r}", size)
        for pattern, share in self.weight_percentile_rules:
            check_share(f"percentile of {pattern!r}", share, closed=True)

    def _check_modes(self) -> None:
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

    def _check_overrides(self) -> None:
        for layer, fields in self.layer_overrides:
            for key, value in fields:
                _check_key(key, OVERRIDABLE, f"layer_overrides[{layer!r}]")
                if key in ("weight_bits", "act_bits") and value is not None:
                    check_bits(key, value)

    @property
    def needs_calibration(self) -> bool:
        """Whether `quantize` must be given calibration batches."""
        return (
            self.act_range == "static" and self.act_bits is not None
        ) or self.io_correction != "none"

    def replace(self, **changes: Any) -> QuantConfig:
        """A copy with some fields changed; an unknown field is an error."""
        for key in changes:
            _check_key(key, field_names(), "QuantConfig")
        return dataclasses.replace(self, **changes)

    def with_overrides(self, overrides: Mapping[str, Any] | str | Path) -> QuantConfig:
        """A copy with per-layer overrides from a mapping or a JSON file (S1.1)."""
        if isinstance(overrides, str | Path):
            overrides = read_json(overrides)
        if not isinstance(overrides, Mapping):
            raise ConfigError(f"overrides is {overrides!r}; accepted: a mapping or a JSON file")
        return self.replace(layer_overrides={**dict(self.layer_overrides), **overrides})

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        result: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "layer_overrides":
                value = {layer: dict(fields) for layer, fields in value}
            elif field.name in _PAIR_FIELDS:
                value = dict(value)
            elif isinstance(value, tuple):
                value = list(value)
            result[field.name] = value
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> QuantConfig:
        """Strict inverse of `to_dict`: an unknown key is an error that names the nearest one."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"a config is a mapping of fields; found {type(data).__name__}")
        for key in data:
            _check_key(key, field_names(), "QuantConfig")
        return cls(**data)

    @classmethod
    def from_json(cls, path: str | Path) -> QuantConfig:
        """Read a config file."""
        return cls.from_dict(read_json(path))


def field_names() -> tuple[str, ...]:
    """All fields of QuantConfig."""
    return tuple(field.name for field in dataclasses.fields(QuantConfig))


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object from a file, with one-line errors."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds a {type(data).__name__}; expected a JSON object")
    return data


def _as_pairs(field: str, value: Any) -> Pairs:
    try:
        pairs = tuple((key, item) for key, item in dict(value).items())
    except (TypeError, ValueError):
        raise ConfigError(f"{field} is {value!r}; accepted: a mapping") from None
    for key, _ in pairs:
        if not isinstance(key, str):
            raise ConfigError(f"{field} has the key {key!r}; accepted: strings")
    return pairs


def _as_names(field: str, value: Any) -> tuple[str, ...] | None:
    if value is None and field in ("dcrp_roles", "dcrp_modes"):
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"{field} is {value!r}; accepted: a list of strings")
    names = tuple(value)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"{field} has {name!r}; accepted: strings")
    return names


def _check_key(key: object, known: Iterable[str], where: str) -> None:
    known = tuple(known)
    if key in known:
        return
    close = difflib.get_close_matches(str(key), known, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    raise ConfigError(f"{where} has no field {key!r}; {hint}")
