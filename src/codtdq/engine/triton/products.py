"""The product kernels as functions of tensors: the sibling of `codtdq.engine.cpu.products`."""

from __future__ import annotations

from torch import Tensor

from codtdq.engine.cpu.products import Window
from codtdq.engine.triton import depthwise as depthwise_file
from codtdq.engine.triton import fused as fused_file
from codtdq.engine.triton import product as product_file
from codtdq.engine.triton import tables
from codtdq.engine.triton.encoders import Codes, bounds_of, spec_constants
from codtdq.engine.triton.epilogue import ACTIVATIONS
from codtdq.engine.triton.launch import chosen, launch
from codtdq.engine.triton.tables import Block
from codtdq.engine.triton.weights import SLAB, GpuWeights
from codtdq.numerics.spec import ActivationSpec


def product(
    x: Codes, weights: GpuWeights, window: Window, bias: Tensor | None, activation: str
) -> Tensor:
    """Output rows [window.rows, O]."""
    outputs, taps, _ = weights.shape
    y = x.step.new_empty(window.rows, outputs)
    grouped = x.step.ndim > 1
    weight_groups = weights.scales.shape[0] > 1
    shared = not (grouped or weight_groups or x.zero is not None)
    plain = window == Window(window.maps)
    arguments = {
        "codes": x.codes,
        "step": x.step,
        "zero": x.zero,
        "packed": weights.packed,
        "scales": weights.scales,
        "weight_sums": None if x.zero is None else weights.sums,
        "bias": bias,
        "y": y,
        "rows": window.rows,
        "outputs": outputs,
        "taps": taps,
        "slabs": weights.slabs,
        "code_stride": x.codes.shape[1],
        "packed_stride": weights.packed.shape[1],
        **_steps(x),
        **_geometry(window),
    }
    constants = {
        "GROUP": x.group,
        "SHARED_STEP": shared,
        "WEIGHT_GROUPS": weight_groups,
        "WINDOW": not plain,
        "ACTIVATION": ACTIVATIONS[activation],
    }
    table = tables.SHARED_PRODUCT if shared else tables.PRODUCT

    def run(block: Block) -> None:
        slabs = (
            min(block.slabs, tables.power_of_two(weights.slabs)) if shared else 1
        )  # each has its step
        sizes = {"BLOCK_M": block.m, "BLOCK_N": block.n, "SLABS": slabs}
        grid = (-(-window.rows // block.m) * -(-outputs // block.n),)
        launch(product_file.product, grid, arguments, constants | sizes, block)

    key = (window, weights.shape, *constants.values())
    run(chosen("product", table, window.rows, outputs, key, run))
    return y


def fused_pays(spec: ActivationSpec, outputs: int, *, shared: bool) -> bool:
    """Whether the quantizer belongs inside the product of a Linear: where one program has all
    outputs of its tokens and nobody else wants the codes, they need not go through memory.
    """
    widest = max(block.n for _, _, block in tables.FUSED)
    return (
        spec.mode == "per_token_group"
        and spec.group_size == SLAB
        and not shared
        and outputs <= widest
    )


def fused_linear(
    x: Tensor, spec: ActivationSpec, weights: GpuWeights, bias: Tensor | None, activation: str
) -> Tensor:
    """Quantize rows [N, C] in groups of 32 and multiply, in one kernel: [N, O]."""
    rows, outputs = x.shape[0], weights.shape[0]
    y = x.new_empty(rows, outputs)
    arguments = {
        "x": x,
        "packed": weights.packed,
        "scales": weights.scales,
        "bias": bias,
        "y": y,
        "rows": rows,
        "channels": x.shape[1],
        "outputs": outputs,
        "slabs": weights.slabs,
        "row_stride": x.stride(0),
        "channel_stride": x.stride(1),
        "packed_stride": weights.packed.shape[1],
        **bounds_of(spec, x.device, True),
    }
    constants = {
        "WEIGHT_GROUPS": weights.scales.shape[0] > 1,
        "ACTIVATION": ACTIVATIONS[activation],
        **spec_constants(spec),
    }

    def run(block: Block) -> None:
        sizes = {"BLOCK_M": block.m, "BLOCK_N": block.n}
        grid = (-(-rows // block.m), -(-outputs // block.n))
        launch(fused_file.fused_linear, grid, arguments, constants | sizes, block)

    key = (spec, rows, weights.shape, activation)
    run(chosen("fused", tables.FUSED, rows, outputs, key, run))
    return y


def depthwise(
    x: Codes, taps: Tensor, window: Window, bias: Tensor | None, activation: str
) -> Tensor:
    """Depthwise convolution with taps [T, C]: output rows [window.rows, C]."""
    grouped = x.step.ndim > 1
    weight = taps if grouped else taps * x.step  # fixed steps go into the taps
    channels = weight.shape[1]
    y = weight.new_empty(window.rows, channels)
    arguments = {
        "codes": x.codes,
        "step": x.step,
        "zero": x.zero,
        "weight": weight,
        "bias": bias,
        "y": y,
        "rows": window.rows,
        "channels": channels,
        "taps": weight.shape[0],
        "code_stride": x.codes.shape[1],
        **_steps(x),
        **_geometry(window),
    }
    constants = {"GROUP": x.group, "GROUPED": grouped, "ACTIVATION": ACTIVATIONS[activation]}

    def run(block: Block) -> None:
        sizes = {"BLOCK_M": block.m, "BLOCK_N": block.n}
        grid = (-(-window.rows // block.m), -(-channels // block.n))
        launch(depthwise_file.depthwise, grid, arguments, constants | sizes, block)

    key = (window, channels, *constants.values())
    run(chosen("depthwise", tables.DEPTHWISE, window.rows, channels, key, run))
    return y


def _steps(x: Codes) -> dict[str, int]:
    grouped = x.step.ndim > 1
    return {"step_row": x.step.shape[1] if grouped else 0, "step_group": int(grouped)}


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
