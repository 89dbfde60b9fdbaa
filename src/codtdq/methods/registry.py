"""The methods by name, and what each declares about itself.

Built-in methods are found by importing the files of this package on first use, so that a new
method is one new file.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from codtdq.errors import ConfigError
from codtdq.numerics.affine import MAX_BITS, MIN_BITS

if TYPE_CHECKING:
    from codtdq.methods.workbench import Workbench

FROM_CODE = "released code"
FROM_PAPER = "paper text"
FROM_ABSTRACT = "re-implemented from the abstract"
SECOND_HAND = "second-hand description"  # summaries and notes; neither code nor paper at hand
OWN = "this project"


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """What every method can be asked; a method's own dataclass adds its settings.

    None as a width leaves that side float: with both None only what a method folds or rescales
    remains, which must not change the network's function.
    """

    weight_bits: int | None = 4
    act_bits: int | None = 4
    first_act_bits: int | None = 8  # of the operator that reads the image: it keeps its 8 bits

    def __post_init__(self) -> None:
        for name in ("weight_bits", "act_bits", "first_act_bits"):
            value = getattr(self, name)
            fits = isinstance(value, int) and MIN_BITS <= value <= MAX_BITS
            if value is not None and not fits:
                raise ConfigError(
                    f"{name} is {value!r}; accepted: {MIN_BITS} to {MAX_BITS}, or null for float"
                )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in dataclasses.fields(self)
            for value in [getattr(self, field.name)]
        }

    def replace(self, **changes: Any) -> MethodConfig:
        """A copy with some fields changed; an unknown one names the nearest."""
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(names)}"
                raise ConfigError(f"{type(self).__name__} has no field {name!r}; {hint}")
        fixed: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()
        }
        return dataclasses.replace(self, **fixed)


@dataclass(frozen=True, kw_only=True)
class MethodInfo:
    """What stands beside the scores of a method."""

    name: str
    title: str  # as the literature writes it
    source: str  # authors, venue, year
    evidence: str  # what this implementation is made from
    ranges: str  # of activations: "static", "dynamic", or "-"
    granularity: str  # of activation ranges
    calibration_images: int = 128
    gradients: bool = False  # needs backward passes
    reconstructs: bool = False  # takes a step budget
    act_bits: str = "4"  # effective, as a formula in C input channels
    weight_bits: str = "4 + 32/K"  # K: weights of one output channel
    description: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return dataclasses.asdict(self)


Build = Callable[["Workbench"], None]


@dataclass(frozen=True)
class Method:
    """A registered method: its declaration, its default settings and its function."""

    info: MethodInfo
    config: Any  # a MethodConfig, or None where a preset brings its own config
    build: Build | None
    preset: str | None = None
    follows_model: bool = True  # whether a preset takes over the modes that a model declares
    sketch: Build | None = None  # installs the schemes alone; None: they follow from the images


_METHODS: dict[str, Method] = {}
_loaded = False


def register_method(
    name: str,
    *,
    config: type[MethodConfig] = MethodConfig,
    settings: Mapping[str, Any] | None = None,
    sketch: Build | None = None,
    **declaration: Any,
) -> Callable[[Build], Build]:
    """Register a function that quantizes the model on its workbench.

    config: dataclass of the method's settings; `settings` changes some defaults, so that one
        function can stand under several names (variants).
    sketch: installs the same schemes with blank weights, after one blank image: what
        `codtdq plan` shows. Only for methods whose formats do not depend on the images.
    declaration: the fields of `MethodInfo`.

    >>> @register_method("mine", title="Mine", source="us", evidence="this project",
    ...                  ranges="static", granularity="per tensor")
    ... def mine(bench: Workbench) -> None:
    ...     for site in bench.sites: ...
    """

    def add(build: Build) -> Build:
        known = _METHODS.get(name)
        if known is not None and getattr(known.build, "__module__", None) != build.__module__:
            raise ConfigError(f"method {name!r} is registered already; choose another name")
        info = MethodInfo(name=name, **declaration)
        defaults = config().replace(**dict(settings or {}))
        _METHODS[name] = Method(info, defaults, build, sketch=sketch)
        return build

    return add


def add_preset_method(preset: str, info: MethodInfo, *, follows_model: bool = True) -> None:
    """Make a preset of the plan-driven converter a method."""
    _METHODS[info.name] = Method(info, None, None, preset, follows_model)


def list_methods() -> list[str]:
    """Names of all methods: references and ablations, then the literature, then a user's own."""
    _load_builtin()
    return list(_METHODS)


def method_info(name: str) -> MethodInfo:
    """The declaration of a method."""
    return find_method(name).info


def find_method(name: str) -> Method:
    """A method by name."""
    _load_builtin()
    if name not in _METHODS:
        close = difflib.get_close_matches(str(name), _METHODS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(_METHODS)}"
        raise ConfigError(f"unknown method {name!r}; {hint}")
    return _METHODS[name]


def _load_builtin() -> None:
    global _loaded
    if _loaded:
        return
    _loaded = True
    package = importlib.import_module("codtdq.methods.rivals")
    importlib.import_module("codtdq.methods.cod_tdq")  # references come first in lists
    found = [m.name for m in pkgutil.iter_modules(package.__path__)]
    importlib.import_module("codtdq.methods.plus.method")
    for module in sorted(found):
        importlib.import_module(f"codtdq.methods.rivals.{module}")
