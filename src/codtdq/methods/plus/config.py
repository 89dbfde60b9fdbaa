"""Settings of cod-tdq-plus: every ingredient has its switch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from codtdq.errors import ConfigError
from codtdq.methods.plus.choosing import KINDS
from codtdq.numerics.spec import check_positive_int
from codtdq.planning.config import QuantConfig
from codtdq.schemes.group_grid import ZERO_POINTS


@dataclass(frozen=True, kw_only=True)
class PlusConfig(QuantConfig):
    """Fields by ingredient; the files of this folder say what each does."""

    base: str = ""  # a preset whose ranges stay where no ingredient replaces them; "": none stay
    everywhere: bool = True  # False: shared ranges of the base stay shared
    scales: str = "integer"
    weight_group_size: int | None = 32  # inputs that share a scale; None: one scale per output
    # act_group_size: channels of a token, or pixels of a channel, that share a grid
    search: bool = True  # scales of weights by their error; False: the nearest that just covers
    token_zero: str = "inside"  # zero-points of token groups: none, inside, or wide (float scales)
    pixel_zero: str = "inside"  # of pixel groups
    pixel_groups: bool = True  # for depthwise convolutions; False: token groups everywhere
    trials: int = 2  # scales that are searched per group; 1: plain minimum and maximum
    zero_weight: float = 0.0  # extra weight of evidence that falls to zero
    equalize: bool = True  # rescale norms
    exponents: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    transforms: tuple[str, ...] = KINDS  # that operators may choose from
    margin: float = 0.03  # share of the error by which a transform must win
    compensate: bool = True  # GPTQ
    sweeps: int = 2  # of coordinate descent over codes and scales
    ridges: tuple[float, ...] = (0.01, 0.05, 0.3)  # empty: the float weight is the target
    correct_bias: bool = True
    # mean bits that may go, beyond the widths above, to operators whose rounding the mask feels
    spare_act_bits: float = 0.0
    spare_weight_bits: float = 0.0
    images: int = 128

    act_groups: ClassVar[bool] = True
    integer_scales: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("trials", "images"):
            check_positive_int(name, getattr(self, name))
        for name in ("spare_act_bits", "spare_weight_bits"):
            spare = getattr(self, name)
            if isinstance(spare, bool) or not isinstance(spare, int | float) or not 0 <= spare <= 4:
                raise ConfigError(f"{name} is {spare!r}; accepted: 0 to 4 bits per value")
        if not isinstance(self.sweeps, int) or isinstance(self.sweeps, bool) or self.sweeps < 0:
            raise ConfigError(f"sweeps is {self.sweeps!r}; accepted: a whole number of at least 0")
        for name in ("transforms", "ridges", "exponents"):
            if not isinstance(getattr(self, name), tuple):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; accepted: a list")
        for kind in self.transforms:
            if kind not in KINDS:
                raise ConfigError(f"transform {kind!r} is unknown; accepted: {', '.join(KINDS)}")
        for name in ("token_zero", "pixel_zero"):
            if self.scales == "integer" and getattr(self, name) == "wide":
                raise ConfigError(
                    f"{name} is 'wide', which is no multiple of a signed byte; "
                    "accepted: none, inside (or scales='float')"
                )
            if getattr(self, name) not in ZERO_POINTS:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; accepted: {', '.join(ZERO_POINTS)}"
                )
