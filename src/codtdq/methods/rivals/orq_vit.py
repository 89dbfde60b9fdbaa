"""ORQ-ViT in style: rows whose outliers do not set the range. Re-implemented from the abstract.

He, Lu, Liu, Gong, He, "ORQ-ViT", Journal of Systems Architecture, 2025 (10.1016/j.sysarc.2025.
103530). Neither code nor the full text was at hand. The abstract says that activations are taken
apart along the token dimension, so that each row holds only a few isolated outliers, and that an
adaptive range at the quantizer's initialisation keeps them from becoming range boundaries.
Everything below is this project's reading of that, not a statement about the original.

A row x of a Linear's input [C] has the median m and the spread sigma = 1.4826 * median |x - m|
(of an even number of values, the lower of the middle two):

    inliers        |x_c - m| <= kappa * sigma
    range          inlier range, enlarged by tau about its centre, within the row's full range

kappa in {4, 6, 8} and tau in {1, 1.25, 1.5, 2, full range} are chosen per layer by the squared
error over calibration rows, clipped outliers included. A row with sigma = 0 keeps its full range:
more than half of its values are equal, which says nothing about the others. The row's scale
factors out of the product, so it stays an integer one.

A scale per pixel does not factor out of a convolution: convolution inputs get one static range,
found by the same rule over all sampled values, or the percentile range of `per-token` where that
has the lower error (added after the rule alone lost .05 S on 16 test images of cfrn-small).
`per-token` is the control: kappa without limit makes Linear inputs plain
per-token min-max.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.methods.collect import collect_inputs
from codtdq.methods.ranges import percentile_weight
from codtdq.methods.registry import FROM_ABSTRACT, register_method
from codtdq.methods.rivals.per_token import percentile_input
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import code_limits, fake_shifted, grid_of
from codtdq.planning.config import QuantConfig
from codtdq.schemes.base import InputScheme
from codtdq.schemes.inputs import SCALE_BITS, StaticUniform
from codtdq.schemes.stored import BITS, number, optional, rules, several

_NORMAL_MAD = 1.4826  # standard deviation of a normal law over its median absolute deviation
_SEARCH_VALUES = 1 << 18  # of calibration rows, per operator


@dataclass(frozen=True, kw_only=True)
class OrqConfig(QuantConfig):
    """Settings of ORQ-ViT in style. Empty `kappas` leave every range full: per-token min-max."""

    fold_norms: bool = True  # as the common setting of this family has it
    kappas: tuple[float, ...] = (4.0, 6.0, 8.0)
    taus: tuple[float, ...] = (1.0, 1.25, 1.5, 2.0)  # the full range is always a candidate

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(kappa <= 0 for kappa in self.kappas):
            raise ConfigError(f"kappas are {list(self.kappas)}; accepted: numbers above 0")
        if any(tau < 1 for tau in self.taus):
            raise ConfigError(f"taus are {list(self.taus)}; accepted: numbers from 1 up")

    @property
    def range_per(self) -> str:
        """Rows of a Linear."""
        return "token"


class Rule(NamedTuple):
    """How outliers are told and how far the range of the others is stretched."""

    kappa: float
    tau: float


class InlierRows(InputScheme):
    """A range for every row that its outliers do not set. rule None: the row's full range."""

    kind = "inlier-rows"
    accepts = rules(bits=BITS, rule=optional(several(number(0, 1e6), 2, 2)))

    def __init__(self, bits: int, rule: Any = None) -> None:
        super().__init__()
        self.code_bits = bits
        self.rule = None if rule is None else Rule(*rule)

    def forward(self, tokens: Tensor) -> Tensor:
        """Quantize each row with its own grid."""
        spread = _Spread(tokens) if self.rule is not None else None
        low, high = row_range(tokens, self.rule, spread)
        return _on_grid(tokens, low, high, self.code_bits)

    def bits(self, channels: int) -> float:
        """Codes, one scale per token, and its zero-point."""
        return self.code_bits + (SCALE_BITS + self.code_bits) / channels

    def settings(self) -> dict[str, Any]:
        """Width and rule."""
        return {"bits": self.code_bits, "rule": None if self.rule is None else list(self.rule)}


class _Spread:
    """Deviations from the median of each row: shared by all rules that are tried."""

    def __init__(self, rows: Tensor) -> None:
        self.median = rows.median(-1, keepdim=True).values
        self.deviation = (rows - self.median).abs_()
        self.sigma = _NORMAL_MAD * self.deviation.median(-1, keepdim=True).values


def row_range(
    rows: Tensor, rule: Rule | None, spread: _Spread | None = None
) -> tuple[Tensor, Tensor]:
    """(low, high), each [..., 1], of rows [..., C]."""
    low, high = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)
    if rule is None:
        return low, high
    spread = spread or _Spread(rows)
    inside = spread.deviation <= rule.kappa * spread.sigma
    inliers = torch.where(inside, rows, spread.median)  # the median is an inlier itself
    least, most = inliers.amin(-1, keepdim=True), inliers.amax(-1, keepdim=True)
    extra = (rule.tau - 1) / 2 * (most - least)
    flat = spread.sigma == 0
    return (
        torch.where(flat, low, torch.maximum(low, least - extra)),
        torch.where(flat, high, torch.minimum(high, most + extra)),
    )


@register_method(
    "orq-vit",
    config=OrqConfig,
    title="ORQ-ViT (style)",
    source="He et al., J. Syst. Archit. 2025",
    evidence=FROM_ABSTRACT,
    ranges="dynamic",
    granularity="token (convolutions: per tensor, static)",
    act_bits="4 + 36/C",
    weight_bits="4 + 40/K",
    description="dynamic rows whose outliers, told by the median deviation, do not set the range",
)
def orq_vit(bench: Workbench) -> None:
    """Choose each operator's rule on float calibration inputs."""
    active = [site for site in bench.sites if site.act_bits is not None]
    stats = collect_inputs(bench, active) if active else {}
    rules = [Rule(kappa, tau) for kappa in bench.config.kappas for tau in bench.config.taus]
    chosen: dict[str, Any] = {}
    for site in bench.sites:
        inputs: InputScheme | None = None
        if site.act_bits is not None and site.kind == "linear":
            rule = best_rule(_some(stats[site.name].rows), site.act_bits, rules)
            inputs = InlierRows(site.act_bits, rule)
            chosen[site.name] = None if rule is None else list(rule)
        elif site.act_bits is not None:
            inputs = static_range(_some(stats[site.name].rows), site.act_bits, rules)
        weight = None
        if site.weight_bits is not None:
            weight = percentile_weight(site.float_weight, site.weight_bits, group=site.weight_group)
        if inputs is not None or weight is not None:
            bench.install(site, inputs=inputs, weight=weight)
    bench.notes["searched_values_per_operator"] = _SEARCH_VALUES
    bench.notes["rules"] = chosen  # [kappa, tau] of each Linear; null: full range


def best_rule(rows: Tensor, bits: int, rules: list[Rule]) -> Rule | None:
    """The rule with the least squared error over rows [R, C]; None for their full range."""
    spread = _Spread(rows)
    best: tuple[float, Rule | None] | None = None
    for rule in (None, *rules):
        x_hat = _on_grid(rows, *row_range(rows, rule, spread), bits)
        error = float((x_hat - rows).square().sum(dtype=torch.double))
        if best is None or error < best[0]:
            best = error, rule
    assert best is not None
    return best[1]


def static_range(rows: Tensor, bits: int, rules: list[Rule]) -> StaticUniform:
    """One range for a whole tensor: the values of its sampled rows [R, C] are one long row.

    The percentile range of the control is a candidate as well: behind GELU the tail is so long
    that no rule around the median fits it.
    """
    values = rows.reshape(1, -1)
    low, high = row_range(values, best_rule(values, bits, rules))
    ruled = StaticUniform.spanning(low.view(1), high.view(1), bits)
    usual = percentile_input(rows, bits)
    return min(ruled, usual, key=lambda trial: float((trial(values) - values).square().mean()))


def _some(rows: Tensor) -> Tensor:
    """Rows evenly taken from [R, C], about as many values as a search looks at."""
    return rows[:: max(1, rows.numel() // _SEARCH_VALUES)]


def _on_grid(rows: Tensor, low: Tensor, high: Tensor, bits: int) -> Tensor:
    step, zero = grid_of(low, high, bits, symmetric=False)
    return fake_shifted(rows, step, zero, *code_limits(bits, False))


__all__ = ["InlierRows", "OrqConfig", "Rule", "best_rule", "orq_vit", "row_range", "static_range"]
