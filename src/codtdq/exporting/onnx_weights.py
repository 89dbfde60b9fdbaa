"""4-bit weights inside of an ONNX graph: codes and scales in the place of float initializers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codtdq.numerics.packing import pack
from codtdq.operators.quantized import QuantOperator
from codtdq.schemes.lowered import LoweredWeight, Unlowered


class StoredWeight:
    """Nodes and initializers that compute a weight under its own name.

    whole: the whole numbers p r [O, taps, I] instead of W_hat, in its own shape.
    """

    def __init__(
        self, name: str, weight: LoweredWeight, shape: tuple[int, ...], *, whole: bool = False
    ) -> None:
        self.name, self.shape, self.linear = name, shape, len(shape) == 2
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        outputs, taps, inputs = weight.shape
        codes, factor = weight.codes.numpy(), weight.factor.numpy()
        turned = False
        if weight.multiplier is None:
            rows = codes.reshape(outputs, taps * inputs)
            scale = self._constant("scale", np.ones((), np.float32) if whole else factor)
            self._dequantize(rows, scale, weight.bits, axis=0, block=0)
        else:
            rows = codes.reshape(outputs * taps, inputs)
            p = weight.multiplier.reshape(outputs * taps, -1).numpy()
            each = np.repeat(factor, taps)[:, None]
            block = min(weight.group or inputs, inputs)
            uneven = inputs % block > 0  # blocks that not every runtime takes
            if block == inputs:  # a multiplier for each row
                block, p, each = 0, p[:, 0], each[:, 0]
            turned = self.linear and block > 0 and not uneven
            if turned:
                rows, p, each = rows.T, p.T, each.T
            scale = self._cast(self._constant("multiplier", np.ascontiguousarray(p)))
            if not whole:
                scale = self._node("Mul", [scale, self._constant("factor", each)], "scale")
            if uneven:
                self._spread(rows, scale, weight.bits, np.arange(inputs) // block)
            else:
                axis = 1 if block and not turned else 0
                self._dequantize(rows, scale, weight.bits, axis=axis, block=block)
        if whole:
            sizes = self._constant("sizes", np.array(shape, np.int64))
            self._node("Reshape", [f"{name}.rows", sizes], "")
        else:
            self._restore(turned=turned)

    def _spread(
        self, codes: NDArray[np.int8], scale: str, bits: int, block_of: NDArray[np.int64]
    ) -> None:
        """Codes [R, I] times scales [R, K], of the block that each input lies in."""
        one = self._constant("one", np.ones((), np.float32))
        self._dequantize(codes, one, bits, axis=0, block=0, part="rows.codes")
        index = self._constant("blocks", block_of.astype(np.int64))
        each = self._node("Gather", [scale, index], "scale.each", axis=1)
        self._node("Mul", [f"{self.name}.rows.codes", each], "rows")

    def _dequantize(
        self,
        codes: NDArray[np.int8],
        scale: str,
        bits: int,
        *,
        axis: int,
        block: int,
        part: str = "rows",
    ) -> None:
        from onnx import TensorProto, helper

        codes = np.ascontiguousarray(codes)
        if bits == 4:
            import torch

            data = pack(torch.from_numpy(codes.reshape(-1)), 4).numpy().tobytes()
            kind = TensorProto.INT4
        else:
            data, kind = codes.tobytes(), TensorProto.INT8
        name = f"{self.name}.codes"
        self.initializers.append(helper.make_tensor(name, kind, codes.shape, data, raw=True))
        settings = {"axis": axis} | ({"block_size": block} if block else {})
        self._node("DequantizeLinear", [name, scale], part, **settings)

    def _restore(self, *, turned: bool) -> None:
        """From rows to the shape that the graph expects."""
        from onnx import helper

        if self.linear:
            if turned:
                self._node("Transpose", [f"{self.name}.rows"], "", perm=[1, 0])
            else:
                self.nodes.append(helper.make_node("Identity", [f"{self.name}.rows"], [self.name]))
            return
        outputs, inputs, *kernel = self.shape
        sizes = self._constant("sizes", np.array([outputs, *kernel, inputs], np.int64))
        self._node("Reshape", [f"{self.name}.rows", sizes], "taps")
        axes = len(self.shape)
        self._node("Transpose", [f"{self.name}.taps"], "", perm=[0, axes - 1, *range(1, axes - 1)])

    def _cast(self, name: str) -> str:
        from onnx import TensorProto

        return self._node("Cast", [name], "multiplier.float", to=TensorProto.FLOAT)

    def _constant(self, part: str, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        name = f"{self.name}.{part}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def _node(self, kind: str, inputs: list[str], part: str, **settings: Any) -> str:
        from onnx import helper

        name = f"{self.name}.{part}" if part else self.name
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{name}:{kind}", **settings))
        return name


def stored_weight(name: str, operator: QuantOperator) -> StoredWeight | None:
    """How W_hat of an operator is stored; None: as float32."""
    lowered = operator.weight_scheme.lower()
    if isinstance(lowered, Unlowered):
        return None
    return StoredWeight(name, lowered, tuple(operator.weight_scheme.shape))


def stored_whole_weight(name: str, lowered: LoweredWeight) -> StoredWeight:
    """How whole weights [O, taps, I] are stored."""
    return StoredWeight(name, lowered, lowered.shape, whole=True)
