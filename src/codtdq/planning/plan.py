"""The plan: what a config means for a given model, operator by operator, before anything is done.

A plan can be read by a person (`print(plan)`) and by a machine (`plan.to_dict()`); the converter
and the checkpoint follow it to the letter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.numerics.floats import BLOCK
from codtdq.numerics.packing import NIBBLE_BITS, packed_width
from codtdq.numerics.spec import ActivationSpec, WeightSpec
from codtdq.numerics.weight import multiplied, row_shape, scale_count
from codtdq.planning.config import QuantConfig
from codtdq.schemes.projected import input_bits

KEPT_FLOAT = "the config keeps it float"
COUNTED = ("other_bytes", "buffer_bytes")  # fields of a plan that older checkpoints do not have
BLOCK_RANGE = 8  # bytes of a block of 8-bit codes beside them: two float32


def goes_in_blocks(shape: Sequence[int], storage: str) -> bool:
    """Whether a float parameter is stored in 8-bit blocks; storage: a config's `float_storage`."""
    vector = sum(side > 1 for side in shape) < 2
    return storage == "block8" or (storage == "tables8" and not vector)


def float_bytes(shape: Sequence[int], storage: str, width: int = 4) -> int:
    """Bytes of one stored float tensor, `width` each where it is stored as it is."""
    count = math.prod(shape)
    if not goes_in_blocks(shape, storage):
        return width * count
    return count + BLOCK_RANGE * -(-count // BLOCK)  # every tensor begins blocks of its own


@dataclass(frozen=True, kw_only=True)
class Site:
    """One operator and what happens to it: the one descriptor of an operator.

    weight, activation: what the config asks of either side; a method that has formats of its own
    takes the widths (and groups, and clipping) and says in the four fields of its result what it
    made of them.
    """

    name: str
    type: str  # class name of the module
    kind: str  # linear, conv, depthwise, other
    role: str  # attention, mlp, linear, conv, depthwise, first, other
    shape: tuple[int, ...]  # of its weight
    inputs: int  # channels of its input
    weight: WeightSpec | None = None  # None: the weight stays float
    activation: ActivationSpec | None = None  # None: the input stays float
    static: bool = False  # the activation radius is calibrated and fixed
    reason: str | None = None  # why the operator stays float, if it does
    exact: bool = False  # float by the config's wish: stored as it is, never in 8-bit blocks
    extra_parameters: int = 0  # in further matrices of the same module (recurrent cells)
    # what a method made of it, where that is not what `weight` and `activation` say
    weight_format: str | None = None
    act_format: str | None = None
    weight_cost: float | None = None  # effective bits of one value, metadata included
    act_cost: float | None = None
    # only while a model is in work: the module itself, and what made its input
    module: Any = field(default=None, compare=False, repr=False)
    source: Any = field(default=None, compare=False, repr=False)

    @property
    def weight_bits(self) -> int | None:
        """Width of a weight's codes; None: it stays float."""
        return None if self.weight is None else self.weight.bits

    @property
    def act_bits(self) -> int | None:
        """Width of an activation's codes; None: it stays float."""
        return None if self.activation is None else self.activation.bits

    @property
    def weight_group(self) -> int | None:
        """Inputs that share a scale of the weight; None: a whole output channel."""
        return None if self.weight is None else self.weight.group_size

    @property
    def act_group(self) -> int:
        """Channels of a token that share a range, for methods whose inputs have such groups."""
        assert self.activation is not None
        return self.activation.group_size

    @property
    def channels(self) -> int:
        """Channels of its input."""
        return self.inputs

    @property
    def float_weight(self) -> Tensor:
        """The weight as it is now, of a model in work: float, or W_hat once installed."""
        values: Tensor = self.module.weight.detach()
        return values

    def detached(self) -> Site:
        """The same without the model in work."""
        return dataclasses.replace(self, module=None, source=None)

    @property
    def quantized(self) -> bool:
        """Whether anything about the operator changes."""
        return self.weight is not None or self.activation is not None

    @property
    def in_blocks(self) -> bool:
        """Whether its float weight is stored like norms and biases (`float_storage`)."""
        return self.reason is not None and not self.exact

    @property
    def parameters(self) -> int:
        """Elements of the weight."""
        return math.prod(self.shape) + self.extra_parameters

    @property
    def packed_bytes(self) -> int:
        """Bytes of the stored weight, scales included; float weights count as FP32."""
        if self.weight is None:
            return 4 * self.parameters
        if self.weight_cost is not None:
            return round(self.weight_cost * self.parameters / 8)
        rows, taps, inputs = row_shape(torch.Size(self.shape))
        codes = rows * packed_width(taps * inputs, self.weight.bits)
        count = scale_count(torch.Size(self.shape), self.weight)
        width = 2 if self.weight.scale_dtype == "fp16" else 4
        if multiplied(self.weight):
            return codes + rows * (packed_width(count, NIBBLE_BITS) + width)
        return codes + rows * count * width

    @property
    def effective_weight_bits(self) -> float:
        """Bits per weight, scales included."""
        if self.weight is not None and self.weight_cost is not None:
            return self.weight_cost
        return 8 * self.packed_bytes / max(self.parameters, 1)

    @property
    def effective_act_bits(self) -> float:
        """Bits per activation value, scales included."""
        if self.activation is None:
            return 32.0
        if self.act_cost is not None:
            return self.act_cost
        one_token = self.kind != "depthwise" and math.prod(self.shape[2:]) == 1
        return input_bits(self.activation, self.inputs, one_token)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields; those that hold their default are left out."""
        result: dict[str, Any] = {}
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if value is None or value is False or (spec.name == "extra_parameters" and not value):
                continue
            if spec.name in ("module", "source"):
                continue
            if dataclasses.is_dataclass(value):
                value = _changed(value)
            result[spec.name] = list(value) if isinstance(value, tuple) else value
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Site:
        """Inverse of `to_dict`."""
        fields = dict(data)
        fields["shape"] = tuple(fields["shape"])
        if fields.get("weight") is not None:
            fields["weight"] = WeightSpec(**fields["weight"])
        if fields.get("activation") is not None:
            fields["activation"] = ActivationSpec(**fields["activation"])
        return cls(**fields)


@dataclass(frozen=True, repr=False)
class QuantPlan:
    """Every operator of a model with what happens to it, and the totals."""

    config: QuantConfig
    sites: tuple[Site, ...]
    other_parameters: int  # biases, norms, tables: all that is not an operator's weight
    parameters: int  # of the whole model
    # as stored; None in checkpoints of before these were counted
    other_bytes: int | None = None  # of the other parameters
    buffer_bytes: int | None = None  # of buffers: index tables, masks, statistics, static ranges

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def site(self, name: str) -> Site:
        """The site of a module name."""
        for site in self.sites:
            if site.name == name:
                return site
        raise ConfigError(f"{name!r} is no operator of the plan; {len(self.sites)} are")

    @property
    def quantized(self) -> list[Site]:
        """Sites that change."""
        return [site for site in self.sites if site.quantized]

    @property
    def in_scope(self) -> list[Site]:
        """Sites that a method may touch: those that change, and those whose widths are None."""
        return [site for site in self.sites if site.quantized or site.reason == KEPT_FLOAT]

    def totals(self) -> dict[str, Any]:
        """Parameters, bytes and effective bits, scales included."""
        low = [site for site in self.sites if site.weight is not None]
        acts = [site.effective_act_bits for site in self.sites if site.activation is not None]
        storage = self.config.float_storage
        low_bytes = sum(site.packed_bytes for site in low)
        kept = self.other_bytes
        if kept is None:
            kept = float_bytes((self.other_parameters,), storage)
        for site in (site for site in self.sites if site.weight is None):
            shapes = (site.shape, (site.extra_parameters,))
            blocks = sum(float_bytes(shape, storage) for shape in shapes)
            kept += blocks if site.in_blocks else site.packed_bytes
        buffers = self.buffer_bytes or 0
        count = self.parameters
        low_count = sum(site.parameters for site in low)
        return {
            "operators": len(self.sites),
            "quantized_operators": len(self.quantized),
            "parameters": count,
            "quantized_parameters": low_count,
            "fp32_bytes": 4 * count,
            "packed_bytes": low_bytes + kept + buffers,  # all tensors of a file, without its header
            "float_bytes": kept,  # of the packed ones
            "buffer_bytes": buffers,  # of the packed ones
            "bits_per_weight": 8 * low_bytes / max(low_count, 1) if low else 32.0,
            "bits_per_activation": sum(acts) / len(acts) if acts else 32.0,
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "sites": [site.to_dict() for site in self.sites],
            "other_parameters": self.other_parameters,
            "parameters": self.parameters,
            **{key: getattr(self, key) for key in COUNTED if getattr(self, key) is not None},
            "totals": self.totals(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], config: QuantConfig) -> QuantPlan:
        """Inverse of `to_dict`."""
        sites = tuple(Site.from_dict(site) for site in data["sites"])
        counted = {key: data.get(key) for key in COUNTED}
        return cls(config, sites, data["other_parameters"], data["parameters"], **counted)

    def __str__(self) -> str:
        from codtdq.planning.text import format_plan

        return format_plan(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from codtdq.planning.text import plan_html

        return plan_html(self)


def _changed(record: Any) -> dict[str, Any]:
    """Fields of a record that differ from their defaults: short JSON for many sites."""
    return {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if getattr(record, field.name) != field.default
    }
