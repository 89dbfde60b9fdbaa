"""Hear every operator of a float, quantized or simulated model in one way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from codtdq.numerics import ActivationResult
from codtdq.operators import SimOperator, quant_operators, sim_operators
from codtdq.operators.simulated import input_tokens
from codtdq.planning.roles import kind_of, operators

# called with the operator's name, x and x_hat as tokens [N, C], and the quantizer's result
Hearing = Callable[[str, Tensor, Tensor, ActivationResult | None], None]


@dataclass(frozen=True)
class Heard:
    """What is known of an operator before it runs."""

    name: str
    role: str
    kind: str
    channels: int
    mode: str
    bits: float
    group: int | None


def heard_operators(model: nn.Module) -> dict[str, Heard]:
    """Return the operators whose inputs a model quantizes; of a float model, all of them."""
    found: dict[str, Heard] = {}
    for name, quant in quant_operators(model).items():
        site, spec = quant.site, quant.site.activation
        if spec is not None:
            group = spec.group_size if spec.mode == "per_token_group" else None
            found[name] = Heard(
                name, site.role, site.kind, site.inputs, spec.mode, float(spec.bits), group
            )
    for name, sim in sim_operators(model).items():
        scheme, width = sim.input_quantizer, sim.channels
        bits = scheme.bits(width)
        found[name] = Heard(name, sim.role, kind_of(sim), width, scheme.kind, bits, None)
    if found:
        return found
    for op in operators(model):
        if op.kind != "other" and op.obstacle is None:
            width = int(getattr(op.module, "in_features", getattr(op.module, "in_channels", 0)))
            found[op.name] = Heard(op.name, op.role, op.kind, width, "float", 32.0, None)
    return found


@contextmanager
def listening(model: nn.Module, hear: Hearing) -> Iterator[None]:
    """Call `hear` for every input of `heard_operators` while the block runs."""
    names: dict[nn.Module, str] = {}
    undo: list[Callable[[], None]] = []

    def quantized(module: nn.Module, result: ActivationResult) -> None:
        x, x_hat = result.tokens, result.tokens_hat
        width = x.shape[-1]
        # one copy where the channels come first: everybody who listens walks along tokens
        x, x_hat = (part.reshape(-1, width).contiguous() for part in (x, x_hat))
        hear(names[module], x, x_hat, result)

    def simulated(module: SimOperator, x: Tensor, x_hat: Tensor) -> None:
        x = module.input_quantizer.reference(x)  # some schemes rescale before they round
        hear(names[module], x.flatten(0, -2), x_hat.flatten(0, -2), None)

    def floating(module: nn.Module, args: Any, kwargs: Any) -> None:
        x = input_tokens(module, args[0] if args else kwargs["input"]).flatten(0, -2)
        hear(names[module], x, x, None)

    quants, sims = quant_operators(model), sim_operators(model)
    try:
        for name in heard_operators(model):
            module = model.get_submodule(name)
            names[module] = name
            if name in quants:
                quants[name].listener = quantized
                undo.append(lambda op=quants[name]: setattr(op, "listener", None))  # type: ignore[misc]
            elif name in sims:
                sims[name].listener = simulated
                undo.append(lambda op=sims[name]: setattr(op, "listener", None))  # type: ignore[misc]
            else:
                undo.append(module.register_forward_pre_hook(floating, with_kwargs=True).remove)
        yield
    finally:
        for step in undo:
            step()
