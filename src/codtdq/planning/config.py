"""QuantConfig: what every method can be asked. A method's own config adds its settings.

Frozen, strict, JSON in and out. It holds wishes; what a given model gets of them is the plan.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from codtdq.declarations import ROLES as ROLES
from codtdq.errors import ConfigError
from codtdq.numerics.spec import (
    SCALES,
    ActivationSpec,
    WeightSpec,
    check_bits,
    check_choice,
    check_positive_int,
    check_share,
)

FIRST_LAYER = ("quantize", "a8", "w8a8", "float")
COMPUTE_DTYPES = ("fp32", "fp16")
FLOAT_STORAGES = ("fp32", "block8", "tables8")

Pairs = tuple[tuple[str, Any], ...]  # an ordered, hashable mapping; a dict in JSON
C = TypeVar("C", bound="QuantConfig")


@dataclass(frozen=True, kw_only=True)
class QuantConfig:
    """The settings that all methods share.

    Patterns are shell globs over full module names ("encoder.*.fc2"). A pattern that matches no
    operator is an error. Rules and overrides are mappings; where several patterns match, the
    last one wins. Precedence: rules < w8 and keep_a8 patterns, first_layer < layer_overrides; an
    override for an operator that skip_patterns or first_layer keeps float is an error.

    None as a width leaves that side float: with both None only what a method folds or rescales
    remains, which must not change the network's function.
    """

    name: str = "custom"  # of the method, or of a variant of the paper's
    weight_bits: int | None = 4  # 2..8, or None: weights stay float
    weight_group_size: int | None = None  # inputs that share a scale; None: a whole output channel
    weight_percentile: float | None = None  # clip |w| at this share of a channel
    act_bits: int | None = 4  # 2..8, or None: activations stay float
    act_group_size: int = 32  # g: channels of a token that share a range, where a method has groups
    # "integer": scales of groups are whole multiples of a float32 per token, image or output, which
    # engines execute; "float": scales as published, simulated
    scales: str = "float"
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
    # fold each batch norm into the quantized operator whose output it alone reads, before anything
    # else; norms that follow something else stay as they are
    fold_norms: bool = False
    compute_dtype: str = "fp32"  # dtype in which the operators run
    float_storage: str = "fp32"  # how norms, biases, embeddings are stored: "block8" in 8 bits

    pair_fields: ClassVar[tuple[str, ...]] = (
        "role_patterns",
        "weight_group_rules",
        "weight_percentile_rules",
        "act_group_rules",
        "layer_overrides",
    )
    name_fields: ClassVar[tuple[str, ...]] = ("skip_patterns", "w8_patterns", "keep_a8_patterns")
    overridable: ClassVar[tuple[str, ...]] = (
        "weight_bits",
        "weight_group_size",
        "weight_percentile",
        "act_bits",
        "act_group_size",
    )

    # whether groups of channels of a token have ranges of their own; the planner refuses a size of
    # such groups of a method that has other ranges (`range_per`)
    act_groups: ClassVar[bool] = False
    # whether its scales may be integer
    integer_scales: ClassVar[bool] = False
    # whether formats follow from the config alone; else a method chooses them on the way
    plans_formats: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in self.pair_fields:
            object.__setattr__(self, field, as_pairs(field, getattr(self, field)))
        for field in self.name_fields:
            object.__setattr__(self, field, as_names(field, getattr(self, field)))
        layers = tuple((n, as_pairs(f"layer_overrides[{n!r}]", f)) for n, f in self.layer_overrides)
        object.__setattr__(self, "layer_overrides", layers)
        self._check_common()
        self._check_overrides()
        # The records repeat the numeric checks; building them once here reports early.
        WeightSpec(**{**self.weight_fields(), "bits": self.weight_bits or 8})
        ActivationSpec(**{**self.activation_fields("linear", "linear"), "bits": self.act_bits or 8})

    def _check_common(self) -> None:
        for name in ("weight_bits", "act_bits"):
            if getattr(self, name) is not None:
                check_bits(name, getattr(self, name))
        check_choice("first_layer", self.first_layer, FIRST_LAYER)
        check_choice("compute_dtype", self.compute_dtype, COMPUTE_DTYPES)
        check_choice("float_storage", self.float_storage, FLOAT_STORAGES)
        check_choice("scales", self.scales, SCALES)
        if self.scales == "integer" and not self.integer_scales:
            raise ConfigError(
                "scales is 'integer', but this method has scales of its own; accepted: 'float'"
            )
        if not isinstance(self.name, str):
            raise ConfigError(f"name is {self.name!r}; accepted: a string")
        self.check_flags("fp32_ln", "fp32_gn", "fold_norms")
        for pattern, role in self.role_patterns:
            check_choice(f"role_patterns[{pattern!r}]", role, ROLES)
        for pattern, size in (*self.weight_group_rules, *self.act_group_rules):
            check_positive_int(f"group size of {pattern!r}", size)
        for pattern, share in self.weight_percentile_rules:
            check_share(f"percentile of {pattern!r}", share, closed=True)

    def check_flags(self, *names: str) -> None:
        """Raise unless all of these fields are true or false."""
        for name in names:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; accepted: true, false")

    def _check_overrides(self) -> None:
        for layer, fields in self.layer_overrides:
            for key, value in fields:
                check_key(key, self.overridable, f"layer_overrides[{layer!r}]")
                if key in ("weight_bits", "act_bits") and value is not None:
                    check_bits(key, value)

    def weight_fields(self) -> dict[str, Any]:
        """Fields of a weight's record, before patterns and per-layer overrides."""
        return {
            "bits": self.weight_bits,
            "group_size": self.weight_group_size,
            "percentile": self.weight_percentile,
            "scales": self.scales,
        }

    def activation_fields(self, kind: str, role: str) -> dict[str, Any]:
        """Fields of an activation's record, before patterns and per-layer overrides.

        kind: linear, conv or depthwise; role: as found in the model, "first"
            for the image's reader.
        """
        return {
            "bits": self.act_width(role),
            "mode": "per_tensor",
            "group_size": self.act_group_size,
            "tau": None,
            "zero_ratio": None,
            "scales": self.scales,
        }

    def act_width(self, role: str) -> int | None:
        """Bits of an activation; an image keeps its own 8."""
        eight = role == "first" and self.first_layer in ("a8", "w8a8")
        return 8 if eight and self.act_bits is not None else self.act_bits

    @property
    def has_act_groups(self) -> bool:
        """Whether any activation range is one of a group of channels, as the config stands."""
        return self.act_groups

    @property
    def range_per(self) -> str:
        """What has an activation range of its own, of a method without such groups."""
        return "tensor"

    @property
    def needs_calibration(self) -> bool:
        """Whether `quantize` must be given calibration batches."""
        return True

    def replace(self: C, **changes: Any) -> C:
        """A copy with some fields changed; an unknown field is an error."""
        names = self.field_names()
        for key in changes:
            check_key(key, names, type(self).__name__)
        fixed: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in changes.items()
        }
        return dataclasses.replace(self, **fixed)

    def with_overrides(self: C, overrides: Mapping[str, Any] | str | Path) -> C:
        """A copy with per-layer overrides from a mapping or a JSON file (S1.1)."""
        if isinstance(overrides, str | Path):
            overrides = read_json(overrides)
        if not isinstance(overrides, Mapping):
            raise ConfigError(f"overrides is {overrides!r}; accepted: a mapping or a JSON file")
        return self.replace(layer_overrides={**dict(self.layer_overrides), **overrides})

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        result: dict[str, Any] = {}
        for name in self.field_names():
            value = getattr(self, name)
            if name == "layer_overrides":
                value = {layer: dict(fields) for layer, fields in value}
            elif name in self.pair_fields:
                value = dict(value)
            elif isinstance(value, tuple):
                value = list(value)
            result[name] = value
        return result

    @classmethod
    def from_dict(cls: type[C], data: Mapping[str, Any]) -> C:
        """Strict inverse of `to_dict`: an unknown key is an error that names the nearest one."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"a config is a mapping of fields; found {type(data).__name__}")
        return cls().replace(**data)

    @classmethod
    def from_json(cls: type[C], path: str | Path) -> C:
        """Read a config file."""
        return cls.from_dict(read_json(path))

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """All fields."""
        return tuple(field.name for field in dataclasses.fields(cls))


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


def as_pairs(field: str, value: Any) -> Pairs:
    """A mapping as pairs; anything else is an error."""
    try:
        pairs = tuple((key, item) for key, item in dict(value).items())
    except (TypeError, ValueError):
        raise ConfigError(f"{field} is {value!r}; accepted: a mapping") from None
    for key, _ in pairs:
        if not isinstance(key, str):
            raise ConfigError(f"{field} has the key {key!r}; accepted: strings")
    return pairs


def as_names(field: str, value: Any) -> tuple[str, ...]:
    """A list of strings as a tuple; anything else is an error."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"{field} is {value!r}; accepted: a list of strings")
    names = tuple(value)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"{field} has {name!r}; accepted: strings")
    return names


def check_key(key: object, known: Iterable[str], where: str) -> None:
    """Raise unless a key is known; names the nearest one."""
    known = tuple(known)
    if key in known:
        return
    close = difflib.get_close_matches(str(key), known, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    raise ConfigError(f"{where} has no field {key!r}; {hint}")
