"""Hear every operator of a float or quantized model in one way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from codtdq import operators as listened
from codtdq.numerics import ActivationResult
from codtdq.operators import quant_operators
from codtdq.planning.roles import operators
from codtdq.schemes.inputs import FloatInput
from codtdq.schemes.projected import ProjectedRange

# called with the operator's name, x and x_hat as tokens [N, C], and the quantizer's result
Hearing = Callable[[str, Tensor, Tensor, ActivationResult | None], None]


@dataclass(frozen=True)
class OperatorInfo:
    """What is known of an operator's input before it runs."""

    name: str
    role: str
    kind: str
    channels: int
    mode: str
    bits: float
    group: int | None


def heard_operators(model: nn.Module) -> dict[str, OperatorInfo]:
    """The operators whose inputs a model quantizes; of a float model, all of them."""
    found: dict[str, OperatorInfo] = {}
    for name, operator in quant_operators(model).items():
        scheme, site, width = operator.input_scheme, operator.site, operator.inputs
        about: tuple[str, float, int | None]
        if isinstance(scheme, ProjectedRange):
            spec = scheme.spec
            group = spec.group_size if spec.mode == "per_token_group" else None
            about = spec.mode, float(spec.bits), group
        elif not isinstance(scheme, FloatInput):
            about = scheme.kind, scheme.bits(width), None
        else:
            continue
        found[name] = OperatorInfo(name, site.role, site.kind, width, *about)
    if found:
        return found
    for op in operators(model):
        if op.kind != "other" and op.obstacle is None:
            width = int(getattr(op.module, "in_features", getattr(op.module, "in_channels", 0)))
            found[op.name] = OperatorInfo(op.name, op.role, op.kind, width, "float", 32.0, None)
    return found


@contextmanager
def listening(model: nn.Module, hear: Hearing) -> Iterator[None]:
    """Call `hear` for every input of `heard_operators` while the block runs."""

    def rows(name: str, x: Tensor, x_hat: Tensor, result: ActivationResult | None) -> None:
        # one copy where the channels come first: everybody who listens walks along tokens
        tokens = x.reshape(-1, x.shape[-1]).contiguous()
        # a float input stays one object: that is how a listener knows that nothing was rounded
        rounded = tokens if x_hat is x else x_hat.reshape(tokens.shape).contiguous()
        hear(name, tokens, rounded, result)

    modules = {name: model.get_submodule(name) for name in heard_operators(model)}
    with listened.listening(modules, rows):
        yield
