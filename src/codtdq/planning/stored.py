"""Bytes of all that is no operator's weight, as a checkpoint stores it: floats, tables, buffers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from codtdq.numerics.compact import encode
from codtdq.planning.plan import Site, float_bytes
from codtdq.planning.roles import matrices

_WEIGHTS = ".weight_scheme."  # buffers of a quantized operator's weight; its site counts them


def other_bytes(model: nn.Module, sites: Iterable[Site], storage: str) -> int:
    """Bytes of the parameters that are no operator's weight: biases, norms, tables."""
    modules = dict(model.named_modules())
    known = [site for site in sites if site.name in modules]
    weights = {id(p) for site in known for p in matrices(modules[site.name])}
    exact = tuple(f"{site.name}." for site in known if site.exact)
    total = 0
    for name, parameter in model.named_parameters():  # a tied one once
        if id(parameter) not in weights:
            kept = "fp32" if exact and name.startswith(exact) else storage
            total += float_bytes(parameter.shape, kept, parameter.element_size())
    return total


def buffer_bytes(model: nn.Module) -> int:
    """Bytes of the buffers that are stored, in compact form: index tables, masks, statistics."""
    state = model.state_dict(keep_vars=True)
    own = {id(t): (name, t) for name, t in state.items() if _counted(name, t)}
    return sum(_bytes(name, tensor) for name, tensor in own.values())


def _counted(name: str, tensor: object) -> bool:
    """Whether an entry of a state is a buffer that no site counts."""
    plain = isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter)
    return plain and _WEIGHTS not in name


def _bytes(name: str, tensor: Tensor) -> int:
    if tensor.is_meta:  # no values, no compact form
        return tensor.nbytes
    return sum(part.nbytes for part in encode(name, tensor).values())
