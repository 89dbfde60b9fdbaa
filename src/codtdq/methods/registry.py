"""The methods by name, and what each declares about itself.

Built-in methods are found by importing the files of this package on first use, so that a new
method is one new file. A checkpoint has no more of them imported than it names.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from codtdq.errors import ConfigError
from codtdq.planning.cod_tdq_config import CodTdqConfig
from codtdq.planning.config import QuantConfig
from codtdq.planning.presets import follow_model
from codtdq.schemes.base import InputScheme, WeightScheme

if TYPE_CHECKING:
    from codtdq.methods.workbench import Workbench

FROM_CODE = "released code"
FROM_PAPER = "paper text"
FROM_ABSTRACT = "re-implemented from the abstract"
SECOND_HAND = "second-hand description"  # summaries and notes; neither code nor paper at hand
OWN = "this project"


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
    folds_norms: bool = False  # batch norms, before anything else (the config's `fold_norms`)
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
    config: QuantConfig
    build: Build
    sketch: Build | None = None  # installs the schemes alone; None: they follow from the images
    keeps_weights: bool = False  # whether float weights are read, never changed in place
    # whether the activation modes that a model declares as the paper's setting are taken over
    follows_model: bool = False
    conv_reading: str = "per_channel"  # what a range per channel among them is read as


_METHODS: dict[str, Method] = {}
_RIVALS = "codtdq.methods.rivals"  # all files of this folder
_importing = threading.RLock()
# what is not imported yet, in the order of lists: references come first
_waiting = ["codtdq.methods.cod_tdq", "codtdq.methods.plus.method", _RIVALS]


def register_method(
    name: str,
    *,
    config: type[QuantConfig] = QuantConfig,
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
        defaults = config(name=name).replace(**dict(settings or {}))
        info = MethodInfo(name=name, **{"folds_norms": defaults.fold_norms, **declaration})
        _METHODS[name] = Method(info, defaults, build, sketch)
        return build

    return add


def list_methods() -> list[str]:
    """Names of all methods: references and ablations, then the literature, then a user's own."""
    _import_until(lambda: False)
    return sorted(_METHODS, key=lambda name: not _is_builtin(_METHODS[name]))


def method_info(name: str) -> MethodInfo:
    """The declaration of a method."""
    return find_method(name).info


def find_method(name: str) -> Method:
    """A method by name."""
    _import_until(lambda: False)
    if name not in _METHODS:
        close = difflib.get_close_matches(str(name), _METHODS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(_METHODS)}"
        raise ConfigError(f"unknown method {name!r}; {hint}")
    return _METHODS[name]


def add_method(method: Method) -> None:
    """Register a method that is already put together."""
    _METHODS[method.info.name] = method


def method_of(config: QuantConfig) -> Method:
    """The method that builds a config: that of its name, or the paper's for its own fields."""
    _import_until(lambda: False)
    found = _METHODS.get(config.name)
    if found is not None and type(found.config) is type(config):
        return found
    if isinstance(config, CodTdqConfig):
        return _METHODS["cod-tdq"]
    for method in _METHODS.values():
        if type(method.config) is type(config):
            return method
    raise ConfigError(
        f"a {type(config).__name__} named {config.name!r} belongs to no method; "
        f"known: {', '.join(_METHODS)}"
    )


def config_for(name: str, model: Any = None, **changes: Any) -> QuantConfig:
    """The settings of a method by name.

    model: a model whose declared activation modes are taken over where the paper's setting for it
        is asked for (CFRN's convolutions share a range, ESCNet's do not).
    changes: fields to set on top.
    """
    method = find_method(name)
    config = method.config
    declared = getattr(getattr(model, "info", model), "act_modes", None)
    if method.follows_model and isinstance(config, CodTdqConfig):
        return follow_model(config, declared, method.conv_reading, **changes)
    return config.replace(**changes) if changes else config


def config_from(data: Mapping[str, Any]) -> QuantConfig:
    """The config of JSON fields: `name` says of which method; any other name is the paper's."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"a config is a mapping of fields; found {type(data).__name__}")
    name = str(data.get("name", ""))
    _import_until(lambda: name in _METHODS)
    found = _METHODS.get(name)
    return (CodTdqConfig() if found is None else found.config).replace(**data)


def config_of(header: Mapping[str, Any]) -> QuantConfig:
    """The config of a checkpoint's header; the schemes that it names are known from then on."""
    entries = header["operators"].values()
    sides = ((InputScheme, "input"), (WeightScheme, "weight"))
    needed = [(kind, scheme) for scheme, side in sides for e in entries for kind in _kinds(e[side])]
    _import_until(lambda: all(kind in scheme.known for kind, scheme in set(needed)))
    return config_from(header["config"])


def _kinds(record: Any) -> Iterator[str]:
    """Kinds of a scheme's record, and of those inside of it."""
    while isinstance(record, Mapping):
        yield str(record.get("kind"))
        record = record.get("inner")


def _is_builtin(method: Method) -> bool:
    return method.build.__module__.startswith("codtdq.")


def _import_until(enough: Callable[[], bool]) -> None:
    """Import built-in methods in the order of lists, until enough is known or none is left."""
    with _importing:  # who comes meanwhile waits until they are whole
        while _waiting and not enough():
            found = [_waiting[0]]
            if found == [_RIVALS]:
                files = pkgutil.iter_modules(importlib.import_module(_RIVALS).__path__)
                found = sorted(f"{_RIVALS}.{file.name}" for file in files)
            for module in found:
                importlib.import_module(module)
            _waiting.pop(0)
