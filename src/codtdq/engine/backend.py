"""What a backend is: it says which operators it takes, and builds what executes them.

A backend reads schemes in their lowered form only, so that a new scheme runs on every backend
without a line in it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from torch import nn

from codtdq.operators.backed import Executor
from codtdq.operators.quantized import QuantOperator


class Backend(Protocol):
    """One way to execute quantized operators."""

    name: str
    fuses_gates: bool  # whether depthwise convolutions take the gate that follows them

    def unavailable_reason(self, model: nn.Module) -> str | None:
        """Why it cannot run a model at all, or None."""

    def describe(self) -> str:
        """The backend in a few words."""

    def instruction_set(self) -> str | None:
        """What it runs on, for the record."""

    def device_type(self) -> str:
        """Of the inputs that it computes."""

    def prepare(self, model: nn.Module) -> None:
        """Move a model to where it computes."""

    def unsupported_reason(self, operator: QuantOperator) -> str | None:
        """Why an operator stays simulated; None if the backend takes it."""

    def build(self, operator: QuantOperator) -> Executor:
        """A function that does what the operator's forward does."""

    def sharing_key(self, operator: QuantOperator) -> Hashable:
        """What operators must agree on to share the codes of one input."""

    def take_float_operators(self, model: nn.Module) -> tuple[str, ...]:
        """Compute some float operators as well; returns their names."""
