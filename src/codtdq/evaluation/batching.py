"""How many images may share a forward pass without sharing a range."""

from __future__ import annotations

from torch import nn

from codtdq.errors import ConfigError
from codtdq.operators import quant_operators

DEFAULT_BATCH = 8


def batch_size_for(model: nn.Module, wanted: int | None = None) -> int:
    """The batch size to use. A dynamic range shared by a whole tensor is the range of one image
    only while the batch is 1; token groups and fixed radii do not mind.
    """
    if wanted is not None and wanted < 1:
        raise ConfigError(f"batch size is {wanted}; accepted: 1 or more")
    operators = quant_operators(model).items()
    shared = [name for name, operator in operators if operator.input_scheme.shares_batch]
    if not shared:
        return wanted or DEFAULT_BATCH
    if wanted is not None and wanted > 1:
        raise ConfigError(
            f"batch size is {wanted}, but {len(shared)} operators (e.g. {shared[0]}) share one "
            "dynamic range over the batch; use batch size 1"
        )
    return 1
