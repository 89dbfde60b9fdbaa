"""Arguments and results of one call of torch: tuples, lists and dicts of tensors and numbers.

torch's own walk (`torch.utils._pytree`) also knows what users have registered, and takes longer
than all else that following a call takes. What a model returns is left to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_NODES = (tuple, list, dict)


def leaves(tree: Any) -> list[Any]:
    """Everything in a tree, in order."""
    found: list[Any] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Any]) -> None:
    if isinstance(tree, _NODES):
        for item in tree.values() if isinstance(tree, dict) else tree:
            _collect(item, found)
    else:
        found.append(tree)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree of other leaves; a subclass of tuple, list or dict is a leaf."""
    kind = type(tree)
    if kind is tuple:
        return tuple([mapped(function, item) for item in tree])
    if kind is list:
        return [mapped(function, item) for item in tree]
    if kind is dict:
        return {key: mapped(function, item) for key, item in tree.items()}
    return function(tree)
