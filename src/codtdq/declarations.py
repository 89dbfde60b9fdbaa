"""What a module says about itself to those who quantize it: one record, one way to read it.

A module class carries it as a class attribute, next to the layers that it speaks of:

    class Mlp(nn.Module):
        quantization = Declaration(roles={"fc1": "mlp", "fc2": "mlp"})

A module of a foreign library gets it on the instance, by `declare(block, Declaration(...))`.
Nothing has to be declared: what is not said follows from the types of modules and from a trace.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from codtdq.errors import ConfigError

ATTRIBUTE = "quantization"  # of a module class or instance; `quant` is a stub in torch.ao models
ROLES = ("attention", "mlp", "linear", "conv", "depthwise", "first")
FUSIBLE = ("gated_gelu",)
COMPUTABLE = ("deform3x3",)
TOKEN_GRIDS = ("input",)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The facts about a module that neither its type nor a trace can tell. All are optional.

    A wrong value is an error here; a name that the module does not have is one when it is read
    (see `check_declaration`).
    """

    # What a child is for, and everything inside it that does not declare otherwise; one of ROLES.
    # A child that some instances lack is None there.
    #   roles={"qkv": "attention", "fc1": "mlp"}
    roles: Mapping[str, str] = field(default_factory=dict)
    # The operation by which an engine may know the module, to compute it along with the operator
    # before it; one of FUSIBLE. "gated_gelu": [B, 2C, H, W] -> [B, C, H, W], GELU of the first
    # half of the channels times the second.
    #   fused_as="gated_gelu"
    fused_as: str | None = None
    # The float operation by which an engine may know the module, to compute it itself; one of
    # COMPUTABLE. The module asks its attribute `executor` first, if that is not None, and computes
    # by itself where that returns None. "deform3x3": a deformable convolution of (x, offsets) with
    # `weight` [O, C, 3, 3] and `bias` [O].
    #   computed_as="deform3x3"
    computed_as: str | None = None
    # Path of a norm -> buffer [C], None at first, that the module pads with after that norm, None
    # for zeros: a rescaling that shifts the norm's output leaves the image of zero there.
    #   fold_padding={"norm1": "pad_token"}
    fold_padding: Mapping[str, str] = field(default_factory=dict)
    # Where the tokens of the output [B, O, H, W] lie, if a trace cannot follow forward; one of
    # TOKEN_GRIDS. "input": on the grid of the first input [B, C, H, W].
    #   token_grid="input"
    token_grid: str | None = None

    def __new__(cls, **declared: Any) -> Declaration:
        """Refuse an unknown field as an unknown value is refused: by an error that names it."""
        known = [each.name for each in fields(cls)]
        for name in declared:
            if name not in known:
                raise ConfigError(f"a declaration has no field {name!r}{_accepted(name, known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        # own copies: a later change of the caller's dict is no part of the declaration
        for name in ("roles", "fold_padding"):
            object.__setattr__(self, name, _strings(name, getattr(self, name)))
        for child, role in self.roles.items():
            _check_choice(f"roles[{child!r}]", role, ROLES)
        for name, known in (
            ("fused_as", FUSIBLE),
            ("computed_as", COMPUTABLE),
            ("token_grid", TOKEN_GRIDS),
        ):
            if getattr(self, name) is not None:
                _check_choice(name, getattr(self, name), known)


def declaration_of(module: nn.Module) -> Declaration:
    """What a module declares; the empty declaration if it declares nothing."""
    # not by getattr: a wrapper (torch.compile) would answer for the module inside it
    found = vars(module).get(ATTRIBUTE, getattr(type(module), ATTRIBUTE, None))
    if isinstance(found, Declaration):
        return found
    if isinstance(found, Mapping):
        raise ConfigError(
            f"{ATTRIBUTE} of {type(module).__name__} is a {type(found).__name__}; "
            f"write {ATTRIBUTE} = codtdq.Declaration(roles={{...}})"
        )
    return _NOTHING  # an attribute of another type is the module's own business


def declare(module: nn.Module, declaration: Declaration) -> None:
    """Attach a declaration to one module, which may be of a library that knows nothing of it.

    It replaces what the class of the module declares.

    >>> for block in network.modules():
    ...     if isinstance(block, library.Block):
    ...         declare(block, Declaration(roles={"attention": "attention", "mlp": "mlp"}))
    """
    if not isinstance(module, nn.Module) or not isinstance(declaration, Declaration):
        found = f"{type(module).__name__}, {type(declaration).__name__}"
        raise ConfigError(f"declare({found}); accepted: a torch.nn.Module and a Declaration")
    _check_names(module, declaration)
    setattr(module, ATTRIBUTE, declaration)


def check_declaration(module: nn.Module) -> Declaration:
    """What a module declares, after a check that it has all that is named there."""
    found = declaration_of(module)
    _check_names(module, found)
    return found


def _check_names(module: nn.Module, declared: Declaration) -> None:
    who = type(module).__name__
    for child in declared.roles:
        if not isinstance(getattr(module, child, "absent"), nn.Module | None):
            known = [name for name, _ in module.named_children()]
            raise ConfigError(f"roles of {who}: it has no child {child!r}{_accepted(child, known)}")
    for norm, buffer in declared.fold_padding.items():
        inside = [name for name, _ in module.named_modules() if name]
        if norm not in inside:
            raise ConfigError(
                f"fold_padding of {who}: it has no module {norm!r}{_accepted(norm, inside)}"
            )
        if buffer not in module._buffers:
            raise ConfigError(
                f"fold_padding of {who}: it has no buffer {buffer!r}; "
                f"call self.register_buffer({buffer!r}, None) in its constructor"
            )


def _strings(name: str, value: object) -> dict[str, str]:
    """A mapping of names to names, copied."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r}; accepted: a mapping of names to names")
    for pair in value.items():
        if not all(isinstance(each, str) for each in pair):
            raise ConfigError(f"{name} has the entry {pair!r}; accepted: names of type str")
    return dict(value)


def _check_choice(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"{name} is {value!r}{_accepted(value, known)}")


def _accepted(name: object, known: Sequence[str]) -> str:
    """The end of a message: the nearest accepted name, and all of them."""
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"{hint}; accepted: {', '.join(known) or 'none'}"


_NOTHING = Declaration()  # of most modules
