"""Which operators a model has and what a method does to them, by family (the paper's Table S10).

Operators come from the plan. What is no operator (norms, Softmax, sums, interpolation) stays float
under every method: norms are counted as modules, functions by their calls in one forward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from codtdq.api import blank_image, config, plan
from codtdq.errors import ConfigError
from codtdq.planning.plan import Site
from codtdq.planning.roles import NORMS

FLOAT_RULE = "float"
DEPTH = 1  # parts of a name that make a module of the second list
_FAMILIES: dict[str, tuple[str, Callable[[Site], bool]]] = {
    "attention": (
        "Attention Linear projections",
        lambda site: site.kind == "linear" and site.role == "attention",
    ),
    "mlp": (
        "MLP and feed-forward Linear projections",
        lambda site: site.kind == "linear" and site.role == "mlp",
    ),
    "linear": (
        "Other Linear projections",
        lambda site: site.kind == "linear" and site.role not in ("attention", "mlp"),
    ),
    "conv": ("Convolutions", lambda site: site.kind in ("conv", "depthwise")),
    "other": ("Other operators with weights", lambda site: site.kind == "other"),
}
# Functions by family: how torch calls them -> the word for it.
_FUNCTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "softmax": (
        "Softmax",
        {"softmax": "softmax", "scaled_dot_product_attention": "inside fused attention"},
    ),
    "elementwise": (
        "Sums, interpolation, output post-processing",
        {
            **dict.fromkeys(("add", "add_", "__add__", "__iadd__", "__radd__"), "sum"),
            "interpolate": "interpolate",
            "sigmoid": "sigmoid",
        },
    ),
}


class _Calls(TorchFunctionMode):
    """Counts the functions that a forward pass calls, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.counts[getattr(func, "__name__", "")] += 1
        return func(*args, **(kwargs or {}))


def run_inventory(model: nn.Module, method: str) -> dict[str, Any]:
    """Families and modules of a model under a method, JSON-ready. Weights do not matter."""
    image = blank_image(model)
    if image is None:
        raise ConfigError("the model declares no input size; register it with one")
    sites = plan(model, config(method, model=model)).sites
    families = [
        _family(name, title, [site for site in sites if belongs(site)])
        for name, (title, belongs) in _FAMILIES.items()
    ]
    norms = [module for module in model.modules() if isinstance(module, NORMS)]
    families.append(_floating("norm", "Norms", Counter(type(norm).__name__ for norm in norms)))
    calls = _Calls()
    with torch.inference_mode(), calls:
        model.eval()(image)
    for name, (title, functions) in _FUNCTIONS.items():
        found: Counter[str] = Counter()
        for function, word in functions.items():
            found[word] += calls.counts[function]
        families.append(_floating(name, title, +found))
    modules: dict[str, list[Site]] = {}
    for site in sites:
        modules.setdefault(".".join(site.name.split(".")[:DEPTH]), []).append(site)
    return {
        "kind": "operators",
        "method": method,
        "families": [family for family in families if family["count"]],
        "modules": [{"module": name, **_counts(found)} for name, found in modules.items()],
    }


def _counts(sites: Iterable[Site]) -> dict[str, Any]:
    sites = list(sites)
    return {
        "types": _types(Counter(site.type for site in sites)),
        "count": len(sites),
        "quantized": sum(site.quantized for site in sites),
        "parameters": sum(site.parameters for site in sites),
    }


def _family(name: str, title: str, sites: list[Site]) -> dict[str, Any]:
    rules = Counter(_rule(site) for site in sites)
    several = len(rules) > 1
    words = [f"{count} {rule}" if several else rule for rule, count in rules.most_common()]
    return {"family": name, "title": title, **_counts(sites), "rule": "; ".join(words)}


def _floating(name: str, title: str, types: Counter[str]) -> dict[str, Any]:
    return {
        "family": name,
        "title": title,
        "types": _types(types),
        "count": types.total(),
        "quantized": 0,
        "parameters": 0,
        "rule": FLOAT_RULE,
    }


def _types(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _rule(site: Site) -> str:
    """Widths and granularity of one operator, in a few words."""
    if not site.quantized:
        return FLOAT_RULE
    weight = "W float" if site.weight is None else f"W{site.weight.bits}"
    if site.activation is None:
        return f"{weight}, A float"
    how = site.act_format or site.activation.mode.replace("_", " ")
    return f"{weight}A{site.activation.bits} {how}{', fixed' if site.static else ''}"
