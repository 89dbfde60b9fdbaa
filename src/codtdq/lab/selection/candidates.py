"""The settings that are compared: (g, tau, zr), on top of a base config."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from codtdq.errors import ConfigError
from codtdq.operators import quant_operators
from codtdq.planning import CodTdqConfig, QuantConfig, QuantPlan, make_plan
from codtdq.planning.units import projected_input

GROUPS = (16, 32, 64)
TAUS: tuple[float | None, ...] = (0.5, 1.0, 2.0, None)
ZERO_RATIOS: tuple[float | None, ...] = (0.1, 0.2, 0.4, None)


@dataclass(frozen=True)
class Candidate:
    """One setting of DSTG and DCRP: group size g (Eq. direct_sum), tau of C1, zr of C2."""

    group: int
    tau: float | None  # None leaves C1 out
    zero_ratio: float | None  # None leaves C2 out

    def __str__(self) -> str:
        return f"g={self.group} tau={_word(self.tau)} zr={_word(self.zero_ratio)}"

    def fields(self) -> dict[str, Any]:
        """Fields of CodTdqConfig, and of its per-layer overrides."""
        return {"act_group_size": self.group, "tau": self.tau, "zero_ratio": self.zero_ratio}

    def config(self, base: CodTdqConfig) -> CodTdqConfig:
        """The base with this setting."""
        return base.replace(**self.fields())

    @classmethod
    def of(cls, config: CodTdqConfig) -> Candidate:
        """The setting that a config has."""
        return cls(config.act_group_size, config.tau, config.zero_ratio)


PAPER_SETTING = Candidate(32, 1.0, 0.2)  # S3.1: the one that self-selection is said to find


def candidate_grid(
    groups: Sequence[int] = GROUPS,
    taus: Sequence[float | None] = TAUS,
    zero_ratios: Sequence[float | None] = ZERO_RATIOS,
) -> list[Candidate]:
    """Return all combinations, each once, in the order given."""
    found = [Candidate(*values) for values in itertools.product(groups, taus, zero_ratios)]
    return list(dict.fromkeys(found))


def check_base(config: QuantConfig) -> CodTdqConfig:
    """The base itself; raises unless g, tau and zr change anything under it."""
    if not isinstance(config, CodTdqConfig):
        raise ConfigError(
            f"base {config.name!r} is a {type(config).__name__}, which has no tau and zero_ratio; "
            "take a variant of the paper's method, e.g. cod-tdq-guarded"
        )
    if config.act_bits is None:
        raise ConfigError(
            f"base {config.name!r} keeps activations float; select chooses how they are quantized"
        )
    if config.act_range == "static":
        raise ConfigError(
            f"base {config.name!r} has static ranges, which g, tau and zr do not move at run time; "
            "take a dynamic one, e.g. cod-tdq-guarded"
        )
    if config.io_correction != "none":
        raise ConfigError(
            f"base {config.name!r} has io_correction, which depends on the setting; select first, "
            "then correct: codtdq quantize --config FILE --set io_correction=bias"
        )
    if "per_token_group" not in dict(config.act_modes).values():
        raise ConfigError(f"base {config.name!r} has no token groups; take e.g. cod-tdq-guarded")
    return config


def apply_config(quantized: nn.Module, original: nn.Module, config: CodTdqConfig) -> QuantPlan:
    """Give the operators of a quantized model the activation settings that `config` plans.

    Weights do not depend on (g, tau, zr): the model is quantized once, and a candidate is a new
    record per operator, exactly the one that `quantize(original, config)` would make.
    """
    plan = make_plan(original, config)
    for name, operator in quant_operators(quantized).items():
        activation = plan.site(name).activation
        if activation is not None:
            operator.exchange(inputs=projected_input(operator, activation))
    return plan


def _word(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
