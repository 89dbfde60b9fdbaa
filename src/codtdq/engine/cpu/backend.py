"""The native engine as a backend."""

from __future__ import annotations

import itertools
from collections.abc import Hashable

from torch import nn

from codtdq.engine.cpu import library
from codtdq.engine.cpu.executors import executor_for
from codtdq.engine.cpu.fit import lowered_input, unsupported_reason
from codtdq.engine.float_operators import take_float_operators
from codtdq.errors import UnsupportedError
from codtdq.operators.backed import Executor
from codtdq.operators.quantized import QuantOperator


class CpuBackend:
    """Integer products on the CPU, in whatever instruction set it has."""

    name = "cpu"
    fuses_gates = True

    def unavailable_reason(self, model: nn.Module) -> str | None:
        """Why the engine cannot run a model at all, or None."""
        reason = library.unavailable_reason()
        if reason is not None:
            return reason
        tensors = itertools.chain(model.parameters(), model.buffers())
        elsewhere = {tensor.device.type for tensor in tensors} - {"cpu"}
        return f"the model is on {', '.join(sorted(elsewhere))}" if elsewhere else None

    def describe(self) -> str:
        """The engine in a few words."""
        return f"native INT4 engine, {library.instruction_set()}"

    def instruction_set(self) -> str | None:
        """The instruction set in use."""
        return library.instruction_set()

    def device_type(self) -> str:
        """The CPU."""
        return "cpu"

    def prepare(self, model: nn.Module) -> None:
        """Nothing to move."""

    def unsupported_reason(self, operator: QuantOperator) -> str | None:
        """Why an operator stays simulated."""
        return unsupported_reason(operator)

    def build(self, operator: QuantOperator) -> Executor:
        """Pack the weights and put the kernels together."""
        device = next(operator.weight_scheme.buffers()).device
        if device.type != "cpu":
            raise UnsupportedError(
                f"the native engine runs on the CPU, the weights are on {device.type}; "
                "move the model, or use_backend(model, 'reference')"
            )
        return executor_for(operator)

    def sharing_key(self, operator: QuantOperator) -> Hashable:
        """The input's form."""
        inputs = lowered_input(operator)
        padding = getattr(operator, "padding_mode", "zeros")  # others widen the map first
        return inputs.content, operator.inputs, id(operator) if padding != "zeros" else 0

    def take_float_operators(self, model: nn.Module) -> tuple[str, ...]:
        """Deformable convolutions."""
        return take_float_operators(model)
