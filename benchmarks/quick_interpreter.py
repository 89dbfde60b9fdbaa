"""Triton's interpreter with the same numbers in a fraction of the time.

    with quick_interpreter():
        ...  # with TRITON_INTERPRET=1

What a kernel computes is left as it is, operation for operation; replaced are
- the block sizes, by ones as large as the shapes: the interpreter takes its time per program,
- the preparation of the language, which is repeated at every call of a function inside a kernel,
- the wrapping of every shape, at every operation, into Triton's own tuples: once per shape,
- the check of every integer operation for overflow, made by computing it once more,
- products of integers, which NumPy takes element by element: the same exact sums as float32 of a
  BLAS, as long as they stay below 2^24, else float64,
- sums of integers, which NumPy takes in 64 bits: in their own, as a GPU does,
- erf, called in Python per element: SciPy's, in double precision as there.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

EXACT_IN_FLOAT32 = 1 << 24


@contextlib.contextmanager
def quick_interpreter(tallest: int = 8192) -> Iterator[None]:
    """All of the replacements. tallest: rows of a tile at most."""
    from triton.runtime import interpreter

    from codtdq.engine.triton import tables

    builder = interpreter.interpreter_builder
    options = type(builder.options)(sanitize_overflow=False)
    patched = _PatchedOnce(interpreter)
    with contextlib.ExitStack() as stack:
        stack.callback(patched.restore)
        for target, name, value in (
            (tables, "block_for", _shape_sized(tallest)),
            (interpreter, "_patch_lang", patched),
            (builder, "options", options),
            (type(builder), "create_dot", _dot(interpreter, type(builder).create_dot)),
            (interpreter.ReduceOps, "sum", _sum),
            (interpreter, "_get_np_dtype", _kinds(interpreter._get_np_dtype)),
            (interpreter, "np_erf_fp32", _erf),
            *_remembered_shapes(interpreter.tl.core),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        yield


def _shape_sized(tallest: int) -> Callable[..., Any]:
    from codtdq.engine.triton import tables

    def block_for(table: tables.Table, rows: int, outputs: int) -> tables.Block:
        height = min(max(tables.power_of_two(rows), 16), tallest)
        width = min(max(tables.power_of_two(outputs), 16), 256)
        while height * max(width, 32 * 8) > 1 << 20:  # Triton's tiles end there
            height //= 2
        return tables.Block(height, width, slabs=8)

    return block_for


class _PatchedOnce:
    """`_patch_lang`, once per file and until the end instead of once per call."""

    def __init__(self, interpreter: Any) -> None:
        self._patch, self._scope = interpreter._patch_lang, interpreter._LangPatchScope
        self._done: dict[tuple[int, int], Any] = {}

    def __call__(self, function: Any) -> Any:
        names = function.__globals__  # the first rewriting of a function adds to them
        key = id(names), len(names)
        if key not in self._done:
            self._done[key] = self._patch(function)
        return self._scope()  # nothing to restore yet

    def restore(self) -> None:
        for scope in reversed(self._done.values()):
            scope.restore()


def _dot(interpreter: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    def create_dot(self: Any, a: Any, b: Any, d: Any, *precision: Any) -> Any:
        if a.data.dtype != np.int8 or b.data.dtype != np.int8:
            return stock(self, a, b, d, *precision)
        fits = a.data.shape[-1] * 128 * 128 <= EXACT_IN_FLOAT32
        kind = np.float32 if fits else np.float64
        sums = np.matmul(a.data.astype(kind), b.data.astype(kind))
        return interpreter.TensorHandle(sums.astype(d.data.dtype) + d.data, d.dtype.scalar)

    return create_dot


def _sum(self: Any, values: Any) -> Any:
    data = values.handle.data
    kind = data.dtype if data.dtype.kind in "iu" else None
    total = np.sum(data, axis=self.axis, keepdims=self.keep_dims, dtype=kind)
    return self.to_tensor(total, values.dtype)


def _kinds(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    of_scalar = functools.cache(stock)
    return lambda kind: stock(kind) if kind.scalar.is_ptr() else of_scalar(kind.scalar)


def _remembered_shapes(core: Any) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(class, method, replacement): types and tensors that share the objects of equal shapes."""
    of_types: dict[tuple[int, ...], tuple[Any, Any]] = {}
    of_tensors: dict[tuple[int, ...], tuple[Any, Any]] = {}
    make_type, make_tensor = core.block_type.__init__, core.tensor.__init__
    equal = core.block_type.__eq__

    def type_init(self: Any, element_ty: Any, shape: Any) -> None:
        sides = tuple(getattr(side, "value", side) for side in shape)
        if sides not in of_types:
            make_type(self, element_ty, shape)
            of_types[sides] = self.shape, self.numel
        self.element_ty, self.name = element_ty, f"<{sides}, {element_ty}>"
        self.shape, self.numel = of_types[sides]

    def type_equal(self: Any, other: Any) -> Any:
        if isinstance(other, core.block_type) and self.shape is other.shape:
            return self.element_ty == other.element_ty
        return equal(self, other)

    def tensor_init(self: Any, handle: Any, type: Any) -> None:
        sides = tuple(type.shape) if type.is_block() else ()
        if sides not in of_tensors:
            make_tensor(self, handle, type)
            of_tensors[sides] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = of_tensors[sides]

    yield core.block_type, "__init__", type_init
    yield core.block_type, "__eq__", type_equal
    yield core.tensor, "__init__", tensor_init


def _erf(values: Any) -> Any:
    from scipy.special import erf

    return erf(values.astype(np.float64)).astype(np.float32)
