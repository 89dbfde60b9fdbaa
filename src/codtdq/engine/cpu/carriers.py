"""Exact products of carriers: weights in the engine's panels, Linear, convolutions, depthwise.

Plain functions of tensors and numbers, each with a twin of the same bits in `numerics.carrier`,
which also defines the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.cpu.carry import Carriers, depth_of
from codtdq.engine.cpu.interface import CarrierInput, CarrierWeight, Output
from codtdq.engine.cpu.products import (
    ACTIVATIONS,
    Window,
    depthwise_outputs,
    extent,
    length,
    pointer,
)
from codtdq.errors import UnsupportedError
from codtdq.numerics.packing import Nibbles
from codtdq.numerics.threads import wanted_threads


@dataclass(frozen=True)
class CarrierWeights:
    """Weights of one operator, packed for the instruction set that was in use.

    4.25 bits per weight with multipliers for groups of 16 or more (a byte for 32 weights, or for
    16), 4 without, and a float32 for each output.
    """

    packed: Tensor  # uint8: nibbles, or bytes, in panels
    multiplier: Tensor  # int8, one for each run of 16 or 32 inputs; empty: all are 1
    factor: Tensor  # float32, padded to whole panels
    shape: tuple[int, int, int]  # outputs, taps, inputs
    bits: int
    group: int  # inputs of a tap that share a multiplier; 0: all
    instruction_set: str

    @classmethod
    def pack(
        cls,
        codes: Tensor | Nibbles,
        factor: Tensor,
        multiplier: Tensor | None = None,
        *,
        group: int | None = None,
        bits: int = 4,
    ) -> CarrierWeights:
        """Pack w = factor p r of codes r, int8 [O, T, I] or nibbles, and factors [O].

        4 bits: r in -8..7 and multipliers p, int8 [O, T, ceil(I / group)] with 1 <= |p| <= 15, or
        None: 1. group: a multiple of 16, or None: all inputs. 8 bits: r in -127..127, no p.
        """
        outputs, taps, inputs = codes.shape
        factor = factor.float().contiguous()
        described = _describe((outputs, taps, inputs), bits, group or 0, multiplier is not None)
        if multiplier is not None:
            multiplier = multiplier.to(torch.int8).contiguous()
            wanted = (outputs, taps, -(-inputs // (described.group or inputs)))
            if multiplier.shape != wanted:
                raise UnsupportedError(
                    f"multipliers {tuple(multiplier.shape)} for weights {tuple(codes.shape)} in "
                    f"groups of {group or inputs}; accepted: {wanted}"
                )
        if factor.shape != (outputs,):
            raise UnsupportedError(f"factors {tuple(factor.shape)}; accepted: {(outputs,)}")
        packed = torch.zeros(described.packed_bytes, dtype=torch.uint8)
        table = torch.zeros(described.multiplier_bytes, dtype=torch.int8)
        factors = torch.zeros(described.factor_count)
        described.packed, described.multiplier = packed.data_ptr(), table.data_ptr()
        described.factor = factors.data_ptr()
        engine = library.engine()
        if isinstance(codes, Nibbles):
            pack, given = engine.cod_carrier_weight_pack_nibbles, codes.packed.contiguous()
        else:
            pack, given = engine.cod_carrier_weight_pack, codes.to(torch.int8).contiguous()
        code = pack(
            given.data_ptr(),
            given.numel(),
            pointer(multiplier),
            length(multiplier),
            factor.data_ptr(),
            factor.numel(),
            byref(described),
            wanted_threads(),
        )
        if code == 1:
            raise UnsupportedError(
                f"{bits}-bit weights out of range; accepted: codes -8..7 and multipliers of size "
                "1..15 (4 bits), codes -127..127 (8 bits)"
            )
        library.check(code)
        used = library.instruction_set()
        assert used is not None
        shape = (outputs, taps, inputs)
        return cls(packed, table, factors, shape, bits, int(described.group), used)

    def unpack(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What `pack` was given: codes int8 [O, T, I], factors [O], multipliers or None."""
        outputs, taps, inputs = self.shape
        codes = torch.empty(self.shape, dtype=torch.int8)
        factor, multiplier = torch.empty(outputs), None
        if self.multiplier.numel():
            groups = -(-inputs // (self.group or inputs))
            multiplier = torch.empty(outputs, taps, groups, dtype=torch.int8)
        library.check(
            library.engine().cod_carrier_weight_unpack(
                byref(self.described),
                codes.data_ptr(),
                codes.numel(),
                pointer(multiplier),
                0 if multiplier is None else multiplier.numel(),
                factor.data_ptr(),
                factor.numel(),
            )
        )
        return codes, factor, multiplier

    @cached_property
    def described(self) -> CarrierWeight:
        """The engine's view of these tensors."""
        if self.instruction_set != library.instruction_set():
            raise UnsupportedError(
                f"weights were packed for {self.instruction_set}, {library.instruction_set()} is "
                "in use; call use_backend again"
            )
        weight = _describe(self.shape, self.bits, self.group, self.multiplier.numel() > 0)
        sizes = (weight.packed_bytes, weight.multiplier_bytes, weight.factor_count)
        if sizes != (self.packed.numel(), self.multiplier.numel(), self.factor.numel()):
            raise UnsupportedError("weights were packed in another layout; call use_backend again")
        weight.packed, weight.factor = self.packed.data_ptr(), self.factor.data_ptr()
        weight.multiplier = self.multiplier.data_ptr()
        return weight

    @property
    def bytes(self) -> int:
        """Memory that the packed form takes."""
        return self.packed.numel() + self.multiplier.numel() + 4 * self.factor.numel()


def carrier_product(
    x: Carriers,
    weights: CarrierWeights,
    window: Window,
    bias: Tensor | None = None,
    activation: str = "none",
) -> Tensor:
    """Output rows [window.rows, O]: Linear (a window of 1x1), or a convolution."""
    y = torch.empty(window.rows, weights.shape[0])
    _multiply(x, x.data, weights, window, bias, activation, y)
    return y


def grouped_carrier_product(
    x: Carriers,
    weights: Sequence[CarrierWeights],
    window: Window,
    bias: Tensor | None = None,
    activation: str = "none",
) -> Tensor:
    """A convolution in groups: each reads its own channels and writes its own outputs."""
    each, _, channels = weights[0].shape
    depth, data = depth_of(channels), x.data
    if depth != channels:  # a group begins where a row of its own would
        rows = data[:, : channels * len(weights)].unflatten(1, (len(weights), channels))
        data = F.pad(rows, (0, depth - channels)).flatten(1)
    y = torch.empty(window.rows, each * len(weights))
    for index, part in enumerate(weights):
        own = data[:, index * depth : (index + 1) * depth]
        columns = slice(index * each, (index + 1) * each)
        some = None if bias is None else bias[columns]
        _multiply(x, own, part, window, some, activation, y[:, columns])
    return y


def carrier_depthwise(
    x: Carriers,
    weight: Tensor,
    factor: Tensor,
    window: Window,
    bias: Tensor | None = None,
    activation: str = "none",
) -> Tensor:
    """Depthwise convolution with whole weights int8 [T, C] in -127..127 and factors [C].

    Output rows [window.rows, C], half of the channels if gated. Units of whole images, or of each
    channel of an image.
    """
    weight, factor = weight.to(torch.int8).contiguous(), factor.float().contiguous()
    channels = weight.shape[1]
    y = torch.empty(window.rows, depthwise_outputs(channels, activation))
    out = _output(y, bias, activation)
    library.check(
        library.engine().cod_carrier_depthwise(
            byref(_input(x, x.data)),
            byref(window.geometry()),
            channels,
            weight.data_ptr(),
            weight.numel(),
            factor.data_ptr(),
            factor.numel(),
            byref(out),
            wanted_threads(),
        )
    )
    return y


def _multiply(
    x: Carriers,
    data: Tensor,
    weights: CarrierWeights,
    window: Window,
    bias: Tensor | None,
    activation: str,
    y: Tensor,
) -> None:
    out = _output(y, bias, activation)
    library.check(
        library.engine().cod_carrier_conv(
            byref(_input(x, data)),
            byref(window.geometry()),
            byref(weights.described),
            byref(out),
            wanted_threads(),
        )
    )


def _input(x: Carriers, data: Tensor) -> CarrierInput:
    stride = x.unit.shape[1] if x.unit.ndim == 2 else 0
    unit, lengths = x.unit.data_ptr(), (extent(data), x.unit.numel())
    return CarrierInput(data.data_ptr(), data.stride(0), unit, x.unit_rows, stride, *lengths)


def _output(y: Tensor, bias: Tensor | None, activation: str) -> Output:
    kind = ACTIVATIONS[activation]
    return Output(y.data_ptr(), y.stride(0), pointer(bias), kind, extent(y), length(bias))


def _describe(
    shape: tuple[int, int, int], bits: int, group: int, multiplied: bool
) -> CarrierWeight:
    weight = CarrierWeight()
    if library.engine().cod_carrier_weight_describe(*shape, bits, group, multiplied, byref(weight)):
        raise UnsupportedError(
            f"no product of carriers for {bits}-bit weights {shape} in groups of "
            f"{group or 'all inputs'}; accepted: 4 or 8 bits, groups of a multiple of 16, no "
            "multipliers at 8 bits, sums of up to 130000 products"
        )
    return weight
