"""What a quantizer has to know: two small frozen records, one for activations, one for weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

from codtdq.errors import ConfigError
from codtdq.numerics.affine import MAX_BITS, MIN_BITS

WHOLE_BITS = 7  # weights of so many bits have one scale per output where scales are integer
MODES = ("per_tensor", "per_channel", "per_token_group")
PROJECTIONS = ("min", "guarded")
SCALE_DTYPES = ("fp32", "fp16")
SCALES = ("integer", "float")


@dataclass(frozen=True, kw_only=True)
class ActivationSpec:
    """How one activation tensor is quantized. The defaults are the paper's setting (S1.3)."""

    bits: int = 4
    mode: str = "per_token_group"
    group_size: int = 32  # g: channels that share a range, in per_token_group mode
    percentile: float | None = None  # p of Eq. DSTG_clip; None takes the maximum
    tau: float | None = 1.0  # C1: bound on step / sigma; None leaves C1 out
    zero_ratio: float | None = 0.2  # C2: bound on the zero-bin mass; None leaves C2 out
    projection: str = "min"  # "min": Eq. dcrp; "guarded": least squared error up to the bound
    literal: bool = False  # Algorithm S1 to the letter: padding and zeros are counted
    # "integer": steps are whole multiples of a float32 per token or image (`numerics.carrier`)
    scales: str = "float"

    def __post_init__(self) -> None:
        check_bits("act_bits", self.bits)
        check_choice("act_mode", self.mode, MODES)
        check_choice("projection", self.projection, PROJECTIONS)
        check_choice("scales", self.scales, SCALES)
        check_positive_int("act_group_size", self.group_size)
        check_share("act_percentile", self.percentile, closed=True)
        check_share("zero_ratio", self.zero_ratio, closed=False)
        check_positive("tau", self.tau)
        if self.literal and self.projection != "min":
            raise ConfigError("literal=True is Algorithm S1, which has only projection='min'")


@dataclass(frozen=True, kw_only=True)
class WeightSpec:
    """How one weight tensor is quantized: static, symmetric, per output channel or finer."""

    bits: int = 4
    group_size: int | None = None  # inputs of one tap that share a scale; None: whole channel
    percentile: float | None = None  # clip at this share of |w|; None takes the maximum
    scale_dtype: str = "fp32"  # in which scales are stored, and rounded to before codes are
    # "integer": scales of groups are whole multiples 1..15 of one per output (`numerics.carrier`)
    scales: str = "float"

    def __post_init__(self) -> None:
        check_bits("weight_bits", self.bits)
        check_choice("weight_scale_dtype", self.scale_dtype, SCALE_DTYPES)
        check_choice("scales", self.scales, SCALES)
        if self.group_size is not None:
            check_positive_int("weight_group_size", self.group_size)
        check_share("weight_percentile", self.percentile, closed=True)
        if self.bits >= WHOLE_BITS and self.group_size is not None:
            object.__setattr__(self, "scales", "float")  # multiples of such codes are no bytes


def check_bits(name: str, bits: object) -> None:
    """Raise unless bits is an integer from 2 to 8."""
    if not isinstance(bits, int) or isinstance(bits, bool) or not MIN_BITS <= bits <= MAX_BITS:
        raise ConfigError(f"{name} is {bits!r}; accepted: a whole number from 2 to 8")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; accepted: {', '.join(choices)}")


def check_positive_int(name: str, value: object) -> None:
    """Raise unless value is a whole number above zero."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}; accepted: a whole number of at least 1")


def check_positive(name: str, value: object) -> None:
    """Raise unless value is None or a finite number above zero."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and 0 < value < math.inf):  # type: ignore[operator]
        raise ConfigError(f"{name} is {value!r}; accepted: a positive number, or null")


def check_share(name: str, value: object, *, closed: bool) -> None:
    """Raise unless value is None or lies in (0, 1), with 1 itself allowed if `closed`."""
    if value is None:
        return
    top = "]" if closed else ")"
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not (0 < value < 1 or (closed and value == 1))
    ):
        raise ConfigError(f"{name} is {value!r}; accepted: a number in (0, 1{top}, or null")
