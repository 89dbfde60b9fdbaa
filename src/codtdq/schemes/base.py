"""The contract of a scheme: one module per representation, its state in buffers.

An input scheme sees tokens [B, N, C] (images, positions, channels), whatever the operator is, and
gives x_hat in the same shape. A weight scheme holds a weight as it is stored. `kind` and
`settings()` rebuild either, a file fills its buffers: that is all a checkpoint needs. `lower()`
is all an engine needs.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from codtdq.errors import CheckpointError, ConfigError
from codtdq.numerics.activation import ActivationResult
from codtdq.numerics.carrier import Carried
from codtdq.schemes.lowered import LoweredInput, LoweredWeight, Unlowered
from codtdq.schemes.stored import Rule, Stored, check_settings

S = TypeVar("S", bound="Scheme")


class Scheme(nn.Module):
    """What both sides share. A subclass sets `kind` and is known to checkpoints from then on."""

    kind: ClassVar[str] = ""
    known: ClassVar[dict[str, type[Any]]]
    side: ClassVar[str]  # what messages call it
    # what a file may say of each setting; None: whatever the constructor takes
    accepts: ClassVar[Mapping[str, Rule] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if Scheme in cls.__bases__:  # InputScheme and WeightScheme: a registry each
            cls.known = {}
            return
        if not cls.kind:
            raise ConfigError(f"{cls.__name__} needs a class attribute `kind`, its stored name")
        other = cls.known.get(cls.kind)
        if other is not None and other.__qualname__ != cls.__qualname__:
            raise ConfigError(f"{cls.side} {cls.kind!r} exists already: {other.__name__}")
        cls.known[cls.kind] = cls

    def settings(self) -> dict[str, Any]:
        """JSON-ready keywords that build the module again, without its buffers."""
        return {}

    def expected_buffers(self, channels: int) -> dict[str, Stored] | None:
        """What its own buffers may hold in an operator of so many input channels.

        Asked of a scheme that holds the buffers of a file: where two lengths must agree, one is
        taken as it is. None: not declared; then numbers must be finite, and no more is known.
        """
        return None

    def record(self) -> dict[str, Any]:
        """What a checkpoint keeps of the structure."""
        return {"kind": self.kind, **self.settings()}

    def label(self) -> str:
        """What a plan prints for it."""
        return self.kind

    @classmethod
    @functools.cache
    def required(cls) -> frozenset[str]:
        """Settings without which it cannot be built."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = {p.name for p in parameters if p.kind in plain and p.default is p.empty}
        return frozenset(named - {"self"})

    @classmethod
    def build(cls: type[S], record: dict[str, Any]) -> S:
        """The scheme of a record, its buffers still empty; the settings are checked first."""
        settings = dict(record)
        kind = settings.pop("kind", None)
        if not isinstance(kind, str) or kind not in cls.known:
            raise CheckpointError(
                f"{cls.side} {kind!r} is not known; import the file that defines its method "
                "first (codtdq --import FILE ...)"
            )
        known = cls.known[kind]
        if known.accepts is not None:
            reason = check_settings(settings, known.accepts, known.required())
            if reason is not None:
                raise CheckpointError(f"{cls.side} {kind!r} {reason}")
        found: S = known(**settings)
        return found


class InputScheme(Scheme):
    """How the input of an operator is represented."""

    side = "input scheme"

    def forward(self, tokens: Tensor) -> Tensor:
        """x_hat [B, N, C] of tokens [B, N, C]."""
        raise NotImplementedError

    def bits(self, channels: int) -> float:
        """Effective bits of one activation value, run-time metadata included."""
        raise NotImplementedError

    def explain(self, tokens: Tensor) -> ActivationResult | None:
        """x_hat with the statistics of every group; None: the scheme has no groups to tell of."""
        return None

    def carry(self, tokens: Tensor) -> Carried | None:
        """Carriers of tokens [B, N, C], row after row; None: x_hat has no such form."""
        return None

    def reference(self, tokens: Tensor) -> Tensor:
        """The exact values that x_hat stands for: the tokens, unless they are rescaled first."""
        return tokens

    @property
    def shares_batch(self) -> bool:
        """Whether a range is found over the whole batch, so that batch mates change each other."""
        return False

    def lower(self) -> LoweredInput | Unlowered:
        """The engine's form of this scheme, or why there is none."""
        return Unlowered(f"its input scheme {self.kind!r} is only simulated")


class WeightScheme(Scheme):
    """How a weight is stored: integer codes and their scales, as they are saved."""

    side = "weight scheme"
    shape: torch.Size  # of the float weight

    def dequantize(self) -> Tensor:
        """W_hat in float32, in the shape of the float weight."""
        raise NotImplementedError

    def lower(self) -> LoweredWeight | Unlowered:
        """The engine's form of this weight, or why there is none."""
        return Unlowered(f"its weight scheme {self.kind!r} is only simulated")

    def settings(self) -> dict[str, Any]:
        """The shape."""
        return {"shape": list(self.shape)}

    @property
    def stored_bytes(self) -> int:
        """Everything that is stored."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self.buffers())

    def bits(self) -> float:
        """Effective bits per weight."""
        return 8 * self.stored_bytes / max(math.prod(self.shape), 1)


def build_input_scheme(record: dict[str, Any]) -> InputScheme:
    """The input scheme of a record."""
    return InputScheme.build(record)


def build_weight_scheme(record: dict[str, Any]) -> WeightScheme:
    """The weight scheme of a record."""
    return WeightScheme.build(record)
