"""Build a network without filling its parameters: a checkpoint will."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_BUILDING = threading.Lock()  # the replacement below is seen by every thread


@contextlib.contextmanager
def without_parameters() -> Iterator[None]:
    """Parameters registered inside, by this thread, have shapes but no memory; buffers have both.

    Their initial values are neither drawn nor stored: for a large network that is most of the time
    and of the memory that building takes.
    """
    with _BUILDING, _NothingToFill():
        yield from _build_empty()


class _NothingToFill(TorchFunctionMode):
    """Leaves out what would change a tensor without memory, in this thread.

    torch would compute the shape of every random draw, and import its compiler for that.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        given = kwargs or {}
        target = args[0] if args else given.get("tensor")  # as torch.nn.init calls it
        in_place = name.endswith("_") and not name.endswith("__")
        if in_place and isinstance(target, Tensor) and target.is_meta:
            return target
        return func(*args, **given)


def _build_empty() -> Iterator[None]:
    register = nn.Module.register_parameter
    builder = threading.get_ident()

    def register_empty(module: nn.Module, name: str, param: Any) -> None:
        if param is not None and threading.get_ident() == builder:
            param = nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
        register(module, name, param)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
