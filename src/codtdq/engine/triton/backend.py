"""The Triton kernels as a backend."""

from __future__ import annotations

from collections.abc import Hashable

from torch import nn

from codtdq.engine.cpu.fit import lowered_input
from codtdq.engine.triton import device
from codtdq.engine.triton.executors import executor_for, unsupported_reason
from codtdq.operators.backed import Executor
from codtdq.operators.quantized import QuantOperator


class TritonBackend:
    """Integer products on a GPU."""

    name = "triton"
    fuses_gates = False

    def unavailable_reason(self, model: nn.Module) -> str | None:
        """Why the kernels cannot run a model at all, or None; a model elsewhere is moved."""
        return device.unavailable_reason()

    def describe(self) -> str:
        """The kernels in a few words."""
        return device.describe()

    def instruction_set(self) -> str | None:
        """The device."""
        return device.describe()

    def device_type(self) -> str:
        """Where the kernels run."""
        return device.target().type

    def prepare(self, model: nn.Module) -> None:
        """Move the model to the device."""
        model.to(device.target())

    def unsupported_reason(self, operator: QuantOperator) -> str | None:
        """Why an operator stays simulated."""
        return unsupported_reason(operator)

    def build(self, operator: QuantOperator) -> Executor:
        """Pack the weights and put the kernels together."""
        return executor_for(operator)

    def sharing_key(self, operator: QuantOperator) -> Hashable:
        """The input's form."""
        return lowered_input(operator).content, operator.inputs

    def take_float_operators(self, model: nn.Module) -> tuple[str, ...]:
        """None."""
        return ()
