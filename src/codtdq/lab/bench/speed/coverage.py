"""How much of a network runs on the native engine: operators, and multiply-accumulates (MACs)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from codtdq.engine import BackendRecord
from codtdq.planning.roles import operators


@dataclass(frozen=True)
class Work:
    """What one forward pass of a float network computes.

    operators: MACs by operator name, those of all its calls; operators that never run have none.
    total: MACs of the whole pass, with the products that belong to no operator (attention).
    """

    operators: dict[str, int]
    total: int


@dataclass(frozen=True)
class Coverage:
    """Counts behind the two shares. Only operators that the forward pass calls are counted."""

    operators: int
    quantized_operators: int
    native_operators: int
    macs: int  # of the whole pass
    operator_macs: int
    native_macs: int

    @property
    def of_quantized(self) -> float:
        """Native operators, of the quantized ones: the share that the paper gives."""
        return self.native_operators / max(self.quantized_operators, 1)

    @property
    def of_operators(self) -> float:
        """Native operators, of all."""
        return self.native_operators / max(self.operators, 1)

    @property
    def of_macs(self) -> float:
        """Native MACs, of all that the pass computes."""
        return self.native_macs / max(self.macs, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        return {
            **asdict(self),
            "of_quantized": self.of_quantized,
            "of_operators": self.of_operators,
            "of_macs": self.of_macs,
        }


def count_work(model: nn.Module, inputs: Tensor) -> Work:
    """Run a float network once and count."""
    counts: dict[str, int] = {}
    handles = []
    for operator in operators(model):

        def add(module: nn.Module, args: Any, output: Any, name: str = operator.name) -> None:
            counts[name] = counts.get(name, 0) + macs_of(module, output)

        handles.append(operator.module.register_forward_hook(add))
    attention = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _sdpa_flops}
    counter = FlopCounterMode(display=False, custom_mapping=attention)
    try:
        with torch.no_grad(), counter:  # inference mode would hide the parts of Linear
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return Work(counts, counter.get_total_flops() // 2)


def macs_of(module: nn.Module, output: Any) -> int:
    """MACs of one call of an operator: each output value is a sum over a row of the weight."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or not isinstance(output, Tensor) or weight.ndim < 2:
        return 0
    if isinstance(module, nn.Embedding):
        return 0
    return output.numel() * weight[0].numel()


def coverage_of(work: Work, quantized: set[str], record: BackendRecord | None) -> Coverage:
    """Return the coverage of a quantized model by its backend record.

    quantized: names of the quantized operators.
    """
    native = set() if record is None else set(record.native)
    return Coverage(
        operators=len(work.operators),
        quantized_operators=len(quantized & set(work.operators)),
        native_operators=len(native & set(work.operators)),
        macs=work.total,
        operator_macs=sum(work.operators.values()),
        native_macs=sum(count for name, count in work.operators.items() if name in native),
    )


def _sdpa_flops(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return sdpa_flop_count(query, key, value)
