"""Hear every operator of a float or quantized model in one way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from codtdq import operators as listened
from codtdq.numerics import ActivationResult
from codtdq.operators import QuantOperator, quant_operators
from codtdq.planning.plan import Site
from codtdq.planning.roles import operators
from codtdq.schemes.inputs import FloatInput
from codtdq.schemes.projected import ProjectedRange

# called with the operator's name, x and x_hat as tokens [N, C], and the quantizer's result
Hearing = Callable[[str, Tensor, Tensor, ActivationResult | None], None]


def heard_operators(model: nn.Module) -> dict[str, Site]:
    """The operators whose inputs a model quantizes; of a float model, all of them."""
    found = {
        name: operator.site
        for name, operator in quant_operators(model).items()
        if not isinstance(operator.input_scheme, FloatInput)
    }
    if found:
        return found
    return {
        site.name: site.detached()
        for site in operators(model)
        if site.kind != "other" and site.reason is None
    }


def input_format(model: nn.Module, name: str) -> tuple[str, float, int | None]:
    """(mode, bits, group) of an operator's input: code bits where ranges are the paper's."""
    operator = model.get_submodule(name)
    if not isinstance(operator, QuantOperator):
        return "float", 32.0, None
    scheme = operator.input_scheme
    if not isinstance(scheme, ProjectedRange):
        return scheme.kind, scheme.bits(operator.inputs), None
    grouped = scheme.spec.mode == "per_token_group"
    return scheme.spec.mode, float(scheme.spec.bits), scheme.spec.group_size if grouped else None


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
