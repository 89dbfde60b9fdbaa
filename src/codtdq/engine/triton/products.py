"""The product kernels as functions of tensors: the sibling of `codtdq.engine.cpu.carriers`."""

from __future__ import annotations

from torch import Tensor

from codtdq.engine.cpu.carry import Carriers
from codtdq.engine.cpu.products import Window
from codtdq.engine.triton import depthwise as depthwise_file
from codtdq.engine.triton import product as product_file
from codtdq.engine.triton import tables
from codtdq.engine.triton.epilogue import ACTIVATIONS
from codtdq.engine.triton.launch import chosen, launch
from codtdq.engine.triton.tables import Block
from codtdq.engine.triton.weights import GpuWeights


def product(
    x: Carriers, weights: GpuWeights, window: Window, bias: Tensor | None, activation: str
) -> Tensor:
    """Output rows [window.rows, O] of carriers [tokens, S 32]."""
    outputs, taps, _ = weights.shape
    y = x.unit.new_empty(window.rows, outputs)
    arguments = {
        "data": x.data,
        "unit": x.unit,
        "packed": weights.packed,
        "multiplier": weights.multiplier,
        "factor": weights.factor,
        "bias": bias,
        "y": y,
        "rows": window.rows,
        "outputs": outputs,
        "taps": taps,
        "slabs": weights.slabs,
        "unit_rows": x.unit_rows,
        **_geometry(window),
    }
    constants = {
        "BYTES": weights.packed.element_size() == 1 and weights.packed.is_signed(),
        "WINDOW": window != Window(window.maps),
        "ACTIVATION": ACTIVATIONS[activation],
    }

    def run(block: Block) -> None:
        slabs = min(block.slabs, tables.power_of_two(weights.slabs))
        sizes = {"BLOCK_M": block.m, "BLOCK_N": block.n, "SLABS": slabs}
        grid = (-(-window.rows // block.m) * -(-outputs // block.n),)
        launch(product_file.product, grid, arguments, constants | sizes, block)

    key = (window, weights.shape, *constants.values())
    run(chosen("product", tables.PRODUCT, window.rows, outputs, key, run))
    return y


def depthwise(
    x: Carriers, taps: Tensor, factor: Tensor, window: Window, bias: Tensor | None, activation: str
) -> Tensor:
    """Depthwise convolution with whole weights int8 [T, C]: output rows [window.rows, C]."""
    channels, own = taps.shape[1], x.unit.ndim == 2
    y = factor.new_empty(window.rows, channels)
    arguments = {
        "data": x.data,
        "unit": x.unit,
        "weight": taps,
        "factor": factor,
        "bias": bias,
        "y": y,
        "rows": window.rows,
        "channels": channels,
        "taps": taps.shape[0],
        "stride": x.data.shape[1],
        "unit_stride": channels if own else 1,
        **_geometry(window),
    }
    constants = {"OWN": own, "ACTIVATION": ACTIVATIONS[activation]}

    def run(block: Block) -> None:
        sizes = {"BLOCK_M": block.m, "BLOCK_N": block.n}
        grid = (-(-window.rows // block.m), -(-channels // block.n))
        launch(depthwise_file.depthwise, grid, arguments, constants | sizes, block)

    key = (window, channels, *constants.values())
    run(chosen("depthwise", tables.DEPTHWISE, window.rows, channels, key, run))
    return y


def _geometry(window: Window) -> dict[str, int]:
    (_, in_h, in_w), (out_h, out_w) = window.maps, window.out
    names = ("stride_h", "stride_w", "pad_h", "pad_w", "gap_h", "gap_w")
    values = (*window.stride, *window.padding, *window.dilation)
    return {
        "in_h": in_h,
        "in_w": in_w,
        "out_h": out_h,
        "out_w": out_w,
        "kernel_w": window.kernel[1],
        **dict(zip(names, values)),
    }
