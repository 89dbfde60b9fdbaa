"""The engine as a faster twin of the simulation: same codes, same values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.cpu.encoders import Encoder
from codtdq.engine.cpu.executors import executor_for
from codtdq.engine.cpu.fit import unsupported_reason
from codtdq.engine.cpu.groups import quantize_groups
from codtdq.numerics.acceleration import offer
from codtdq.numerics.carrier import Carried
from codtdq.numerics.carry import CarrySpec
from codtdq.numerics.projection import Projection
from codtdq.numerics.spec import ActivationSpec
from codtdq.operators.backed import Executor
from codtdq.operators.quantized import QuantOperator
from codtdq.schemes.lowered import MAX_GROUP, MAX_TRIALS, LoweredInput


def projected_groups(tokens: Tensor, spec: ActivationSpec) -> tuple[Tensor, Projection] | None:
    """x_hat [..., C] and the projection of token groups; None where only torch can tell."""
    if spec.mode != "per_token_group" or spec.group_size > MAX_GROUP:
        return None
    if not _plain_data(tokens) or library.load() is None:
        return None
    x_hat, radius, step, active, infeasible = quantize_groups(
        tokens.float(),
        spec.bits,
        spec.group_size,
        spec.literal,
        spec.projection == "guarded",
        spec.percentile,
        spec.tau,
        spec.zero_ratio,
    )
    return x_hat, Projection(radius, step, active, infeasible)


def carry(
    tokens: Tensor, how: CarrySpec, step: Tensor | None, zero: Tensor | None
) -> Carried | None:
    """Carriers of tokens [B, N, C]; None where only torch can tell."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():
        return None
    if tokens.dtype != torch.float32 or not tokens.numel() or not _plain_data(tokens):
        return None
    grouped = how.ranges in ("group", "pixel")
    if grouped and (how.group > MAX_GROUP or how.trials > MAX_TRIALS):
        return None
    if library.load() is None:
        return None
    channels = tokens.shape[2]
    form = LoweredInput(how, step, zero)
    found = Encoder(form).encode(tokens.transpose(1, 2), multipliers=True)
    used = 2 * channels if form.doubled else channels
    assert found.multiplier is not None
    return Carried(
        found.data[:, :used], found.unit, found.multiplier, found.unit_rows, form.doubled
    )


def executor(operator: QuantOperator) -> Callable[[QuantOperator], Executor] | None:
    """What makes the executor of an operator; None where it has to compute itself."""
    if library.load() is None or unsupported_reason(operator) is not None:
        return None
    return executor_for


def _plain_data(x: Tensor) -> bool:
    return x.device.type == "cpu" and not (torch.is_grad_enabled() and x.requires_grad)


def offer_twins() -> None:
    """Make all known to the reference."""
    offer("projected_groups", projected_groups)
    offer("carry", carry)
    offer("executor", executor)
