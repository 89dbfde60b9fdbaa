"""Bits per token, and a shifting quantizer after GELU. Re-implemented from the abstract.

D. Kim, J. Moon, J. Lee, G. Lee, Jeon, B. Ham, "Token-Based Dynamic Bit-Width Assignment for ViT
Quantization", Pattern Recognition 171, 2026. Neither code nor the full text was at hand. Known:
bits are given per token and image by the token's quantization interval, and a hardware-friendly
shifting quantizer takes the inputs behind GELU. The formulas are this project's reading.

A row of a Linear's input with the range w_n (zero included) has the step delta_n(b) =
w_n / (2^b - 1) at b bits and takes

    b_n = min {b in B : delta_n(b) <= tau},    the largest of B if there is none,

B = {3, 4, 5, 6} at 4 bits ({b-1 .. b+2} within 2..8 at b). One tau per layer, by bisection over
calibration rows so that they take the target in the mean and not more; constant rows (padding)
are left out of the fit. A row of b_n bits then is a plain asymmetric per-token row: with B = {4}
the method is `per-token`.

Behind GELU one bit of a code tells the side: with u the row's maximum,

    x >= 0:  step u / (2^(b-1) - 1);        x < 0:  that step * 2^-k,

so that positive codes shifted left by k share one scale with negative ones. k in 0..7 per layer,
by squared error over calibration rows. The other reading of "shifting", unsigned codes of
x + 0.17 with the constant folded into the bias, competes with it; the layer takes the better of
the two (`post_gelu`).

Deviations: the class token has no part (the models have none); softmax attention stays float;
convolutions keep static per-tensor grids. `realised_bits` measures what other images take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import ConfigError
from codtdq.methods.collect import collect_inputs
from codtdq.methods.ranges import percentile_weight
from codtdq.methods.registry import FROM_ABSTRACT, register_method
from codtdq.methods.rivals.per_token import percentile_input
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import (
    EPS,
    MAX_BITS,
    MIN_BITS,
    decode_affine,
    encode_affine,
    fake_shifted,
    qmax_of,
    qmin_of,
    step_of,
)
from codtdq.operators import listening, quant_operators
from codtdq.operators.observing import run_model
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme
from codtdq.schemes.inputs import SCALE_BITS, DynamicToken
from codtdq.schemes.stored import BITS, Stored, number, one_of, rules, several, whole, word

GELU_FLOOR = 0.17  # GELU never falls below -0.17
READINGS = ("best", "shift", "constant", "plain")
_SHIFTS = range(8)
_BISECTIONS = 60


@dataclass(frozen=True, kw_only=True)
class TokenBitsConfig(QuantConfig):
    """Settings of the token bit-width method."""

    fold_norms: bool = True  # as the common setting of this family has it
    candidates: tuple[int, ...] | None = None  # B; null: from one below the target to two above
    post_gelu: str = "best"  # shift, constant, the better of the two, or plain rows

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.post_gelu not in READINGS:
            raise ConfigError(f"post_gelu is {self.post_gelu!r}; accepted: {', '.join(READINGS)}")
        widths = self.candidates
        if widths is not None and (
            not widths or any(not MIN_BITS <= width <= MAX_BITS for width in widths)
        ):
            raise ConfigError(
                f"candidates are {list(widths)}; accepted: widths from {MIN_BITS} to {MAX_BITS}"
            )

    @property
    def range_per(self) -> str:
        """Rows of a Linear."""
        return "token"


class TokenBits(InputScheme):
    """Rows on grids of as many bits as their range asks for.

    tau: [1], the largest step that is good enough. reading: "plain", "shift" or "constant".
    mean_bits: what calibration rows took.
    """

    kind = "token-bits"
    accepts = rules(
        candidates=several(BITS, 1, 7),
        mean_bits=number(0, 8),
        reading=word("plain", "shift", "constant"),
        shift=whole(0, 64),
    )
    tau: Tensor

    def __init__(
        self,
        candidates: Iterable[int],
        mean_bits: float,
        reading: str = "plain",
        shift: int = 0,
        *,
        tau: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.candidates = tuple(sorted(candidates))
        self.mean_bits, self.reading, self.shift = mean_bits, reading, shift
        self.register_buffer("tau", torch.ones(1) if tau is None else tau.detach().float())

    @classmethod
    def fitted(cls, rows: Tensor, target: int, candidates: Iterable[int]) -> TokenBits:
        """The tau with which rows [R, C] take `target` bits in the mean, and not more.

        Where all rows are constant there is nothing to fit: everything takes the target.
        """
        width, varies = _width(rows)
        width = width[varies]
        if not width.numel():
            return cls((target,), float(target))
        made = cls(candidates, float(target))
        enough, short = float(width.max()), 0.0  # tau that takes the fewest bits, and the most
        for _ in range(_BISECTIONS):
            middle = (enough + short) / 2
            if float(made._bits_of(width, middle).double().mean()) > target:
                short = middle
            else:
                enough = middle
        made.tau = torch.tensor([enough])
        # measured with the stored float32, which is what inference compares with
        made.mean_bits = float(made._bits_of(width, made.tau).double().mean())
        return made

    def expected_buffers(self, channels: int) -> dict[str, Stored]:
        """One bound on the step."""
        return {"tau": one_of((1,), low=0)}

    def token_bits(self, tokens: Tensor) -> Tensor:
        """b_n of every row of tokens [..., C] -> [...]."""
        return self._bits_of(_width(tokens)[0], self.tau)

    def count(self, tokens: Tensor) -> tuple[int, int]:
        """(bits, rows) that tokens [..., C] take, constant rows left out."""
        chosen = self.token_bits(tokens)[_width(tokens)[1]]
        return int(chosen.sum()), chosen.numel()

    def forward(self, tokens: Tensor) -> Tensor:
        """Quantize each row at its own width."""
        chosen, result = self.token_bits(tokens), torch.empty_like(tokens)
        for bits in self.candidates:
            rows = chosen == bits
            result[rows] = self._quantize(tokens[rows], bits)
        return result

    def bits(self, channels: int) -> float:
        """Mean code width, and per token a scale, an index of its width and (plain rows) a zero."""
        zero = self.mean_bits if self.reading == "plain" else 0
        index = math.ceil(math.log2(len(self.candidates)))
        return self.mean_bits + (SCALE_BITS + index + zero) / channels

    def settings(self) -> dict[str, Any]:
        """Everything but tau."""
        return {
            "candidates": list(self.candidates),
            "mean_bits": self.mean_bits,
            "reading": self.reading,
            "shift": self.shift,
        }

    def _bits_of(self, width: Tensor, tau: float | Tensor) -> Tensor:
        chosen = torch.full_like(width, self.candidates[-1], dtype=torch.int64)
        for bits in reversed(self.candidates[:-1]):
            chosen[width / (2**bits - 1) <= tau] = bits
        return chosen

    def _quantize(self, rows: Tensor, bits: int) -> Tensor:
        if self.reading == "plain":
            result: Tensor = DynamicToken(bits, symmetric=False)(rows)
            return result
        if self.reading == "constant":
            return constant_shift_rows(rows, bits)
        return shifted_rows(rows, bits, self.shift)


def shifted_rows(rows: Tensor, bits: int, shift: int) -> Tensor:
    """Rows [..., C] whose negative side has a step that is 2^-shift of the positive one."""
    step = step_of(rows.amax(-1, keepdim=True), bits)
    none = torch.zeros_like(step)
    above = fake_shifted(rows, step, none, 0, qmax_of(bits))
    below = fake_shifted(rows, step * 2.0**-shift, none, qmin_of(bits), 0)
    return torch.where(rows < 0, below, above)


def constant_shift_rows(rows: Tensor, bits: int) -> Tensor:
    """Rows [..., C] as unsigned codes of x + 0.17."""
    low = rows.new_tensor(-GELU_FLOOR)
    step = ((rows.amax(-1, keepdim=True) - low) / (2**bits - 1)).clamp(min=EPS)
    return decode_affine(encode_affine(rows, low, step, 2**bits), low, step)


@register_method(
    "token-bitwidth",
    config=TokenBitsConfig,
    title="Token bit-width (style)",
    source="Kim et al., Pattern Recognition 2026",
    evidence=FROM_ABSTRACT,
    ranges="dynamic",
    granularity="token (convolutions: per tensor, static)",
    act_bits="4 (mean) + 38/C",
    weight_bits="4 + 40/K",
    description="3 to 6 bits per token by its range, 4 in the mean; a shifting grid behind GELU",
)
def token_bitwidth(bench: Workbench) -> None:
    """Fit tau of every Linear's input on the float model, and its grid behind GELU."""
    active = [site for site in bench.sites if site.act_bits is not None]
    stats = collect_inputs(bench, active) if active else {}
    layers: dict[str, Any] = {}
    for site in bench.sites:
        inputs: InputScheme | None = None
        if site.act_bits is not None and site.kind == "linear":
            fitted = _for_site(site, stats[site.name].rows, bench.config)
            layers[site.name] = fitted.settings()
            inputs = fitted
        elif site.act_bits is not None:
            inputs = percentile_input(stats[site.name].rows, site.act_bits)
        weight = None
        if site.weight_bits is not None:
            weight = percentile_weight(site.float_weight, site.weight_bits, group=site.weight_group)
        if inputs is not None or weight is not None:
            bench.install(site, inputs=inputs, weight=weight)
    bench.notes["token_bits"] = layers


def _for_site(site: Site, rows: Tensor, config: TokenBitsConfig) -> TokenBits:
    assert site.act_bits is not None
    candidates = config.candidates or widths_around(site.act_bits)
    fitted = TokenBits.fitted(rows, site.act_bits, candidates)
    if site.source.kind != "gelu" or config.post_gelu == "plain":
        return fitted
    trials: list[tuple[str, int]] = []
    if config.post_gelu in ("best", "shift"):
        trials += [("shift", k) for k in _SHIFTS]
    if config.post_gelu in ("best", "constant"):
        trials.append(("constant", 0))
    best, least = trials[0], math.inf
    for trial in trials:
        fitted.reading, fitted.shift = trial
        error = float((fitted(rows) - rows).square().sum(dtype=torch.double))
        if error < least:
            best, least = trial, error
    fitted.reading, fitted.shift = best
    return fitted


def widths_around(target: int) -> tuple[int, ...]:
    """B of a target: from one bit below it to two above, as far as grids go."""
    return tuple(b for b in range(target - 1, target + 3) if MIN_BITS <= b <= MAX_BITS)


def realised_bits(model: nn.Module, batches: Iterable[Any]) -> dict[str, float]:
    """Mean bits per token that batches take at every operator, constant rows left out."""
    found = {
        name: operator
        for name, operator in quant_operators(model).items()
        if isinstance(operator.input_scheme, TokenBits)
    }
    totals: dict[str, list[int]] = {}

    def hear(name: str, tokens: Tensor, x_hat: Tensor, statistics: object) -> None:
        scheme = found[name].input_scheme
        assert isinstance(scheme, TokenBits)
        bits, rows = scheme.count(tokens)
        total = totals.setdefault(name, [0, 0])
        total[0] += bits
        total[1] += rows

    with torch.no_grad(), listening(found, hear):
        for batch in batches:
            run_model(model, batch)
    return {name: bits / rows for name, (bits, rows) in totals.items() if rows}


def _width(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Range of each row [..., C] with zero in it, and whether the row varies at all."""
    low, high = tokens.amin(-1), tokens.amax(-1)
    return high.clamp(min=0) - low.clamp(max=0), high > low


__all__ = [
    "TokenBits",
    "TokenBitsConfig",
    "constant_shift_rows",
    "realised_bits",
    "shifted_rows",
    "token_bitwidth",
    "widths_around",
]
