"""Listen to the inputs of every operator, quantized or float, in one way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from codtdq.numerics.activation import ActivationResult
from codtdq.operators.quantized import QuantOperator
from codtdq.operators.tokens import input_tokens

# called with (name, x, x_hat, statistics); x and x_hat are tokens [B, N, C] in the domain in which
# the scheme rounds; statistics are None where a scheme has no groups to tell of
Hear = Callable[[str, Tensor, Tensor, ActivationResult | None], None]


@contextmanager
def listening(operators: Mapping[str, nn.Module], hear: Hear) -> Iterator[None]:
    """Call `hear` for every input of these operators while the block runs.

    While somebody listens, quantized operators simulate themselves; of a float one, x_hat is x.
    """
    names = {id(module): name for name, module in operators.items()}
    undo: list[Callable[[], None]] = []

    def quantized(
        operator: QuantOperator, x: Tensor, x_hat: Tensor, statistics: ActivationResult | None
    ) -> None:
        hear(names[id(operator)], operator.input_scheme.reference(x), x_hat, statistics)

    def floating(module: nn.Module, args: Any, kwargs: Any) -> None:
        x = input_tokens(module, args[0] if args else kwargs["input"])
        hear(names[id(module)], x, x, None)

    try:
        for module in operators.values():
            if isinstance(module, QuantOperator):
                module.listener = quantized
                undo.append(lambda operator=module: setattr(operator, "listener", None))  # type: ignore[misc]
            else:
                undo.append(module.register_forward_pre_hook(floating, with_kwargs=True).remove)
        yield
    finally:
        for step in undo:
            step()
