"""A network from a program file: images in, masks out."""

from __future__ import annotations

import os
from ctypes import byref, create_string_buffer
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codtdq import native
from codtdq.errors import CheckpointError, ConfigError, DataError, UnsupportedError
from codtdq.pixels import to_pixels
from codtdq.runtime.interface import BAD_FILE, ERROR_BYTES, OK, Shape, library

if TYPE_CHECKING:
    from codtdq.pixels import ImageLike


@dataclass(frozen=True)
class ProgramShape:
    """A shape of input that a file takes, and what a run of it needs."""

    input: tuple[int, ...]  # [B, 3, H, W]
    output: tuple[int, ...]  # [B, 1, h, w]
    arena_bytes: int
    instructions: int


class Runtime:
    """A network in memory, ready to run; several threads may use it at once."""

    def __init__(self, source: str | Path | bytes, *, threads: int | None = None) -> None:
        """Open a program file; everything it says is checked before anything of it is used.

        source: a path, or the bytes of a file.
        threads: that a run may take; by default one for each processor.
        """
        self._handle: int | None = None
        self._threads = _checked_threads(threads)
        self._library = library()
        text = create_string_buffer(ERROR_BYTES)
        if isinstance(source, bytes):
            self._handle = self._library.codtdq_open_memory(
                source, len(source), self._threads, text, ERROR_BYTES
            )
        else:
            self._handle = self._library.codtdq_open(
                os.fsencode(source), self._threads, text, ERROR_BYTES
            )
        if not self._handle:
            raise CheckpointError(text.value.decode(errors="replace"))
        self.shapes = self._describe()
        self.info = self._texts()

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights and tables."""
        return int(self._library.codtdq_constant_bytes(self._open_handle()))

    def predict(
        self,
        image: ImageLike,
        *,
        threshold: float | None = None,
        size: tuple[int, int] | None = None,
    ) -> NDArray[np.uint8]:
        """Segment one image; returns a mask uint8 [H, W] of its size.

        image: an array [H, W, 3], [H, W, 4] or [H, W] of uint8, or of floats from 0 to 1; with
            Pillow also a file or a PIL image.
        threshold: part of the full range from which a pixel is the object: a mask of 0 and 255.
        size: (height, width) of the network's input, of a file that has several.
        """
        if threshold is not None and not 0 < threshold <= 1:
            raise ConfigError(f"threshold is {threshold:g}; accepted: more than 0, at most 1")
        pixels = np.ascontiguousarray(to_pixels(image))
        height, width = pixels.shape[:2]
        mask = np.empty((height, width), np.uint8)
        text = create_string_buffer(ERROR_BYTES)
        code = self._library.codtdq_predict(
            self._open_handle(),
            self._program(1, size),
            pixels.ctypes.data,
            pixels.nbytes,
            height,
            width,
            mask.ctypes.data,
            mask.nbytes,
            self._threads,
            text,
            ERROR_BYTES,
        )
        _check(code, text.value)
        if threshold is not None:
            mask = np.where(mask >= threshold * 255, 255, 0).astype(np.uint8)
        return mask

    def run(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Logits [B, 1, h, w] of inputs [B, 3, H, W], normalised as the network wants them.

        A batch of any length is cut into those that the file has programs for.
        """
        if not isinstance(inputs, np.ndarray) or inputs.ndim != 4 or not inputs.size:
            shape = list(getattr(inputs, "shape", ())) or type(inputs).__name__
            raise DataError(f"inputs are {shape}; accepted: a float array [B, 3, H, W]")
        if not np.issubdtype(inputs.dtype, np.floating):
            raise DataError(f"inputs are of {inputs.dtype}; accepted: float32, normalised")
        sizes = sorted(
            {one.input[0] for one in self.shapes if one.input[1:] == inputs.shape[1:]}, reverse=True
        )
        if not sizes:
            known = ", ".join(str(list(one.input)) for one in self.shapes)
            raise DataError(f"inputs are {list(inputs.shape)}; this file takes {known}")
        values = np.ascontiguousarray(inputs, np.float32)
        made, at = [], 0
        while at < len(values):
            count = next((n for n in sizes if n <= len(values) - at), None)
            if count is None:
                raise DataError(f"{len(values)} inputs; this file takes multiples of {sizes[-1]}")
            program = self._program(count, values.shape[2:])
            made.append(self._run(program, values[at : at + count]))
            at += count
        return made[0] if len(made) == 1 else np.concatenate(made)

    def _run(self, program: int, values: NDArray[np.float32]) -> NDArray[np.float32]:
        shape = self.shapes[program].output
        try:
            outputs = np.empty(shape, np.float32)
        except MemoryError as error:
            raise UnsupportedError(f"out of memory for logits of {list(shape)}") from error
        text = create_string_buffer(ERROR_BYTES)
        code = self._library.codtdq_run(
            self._open_handle(),
            program,
            values.ctypes.data,
            values.size,
            outputs.ctypes.data,
            outputs.size,
            self._threads,
            text,
            ERROR_BYTES,
        )
        _check(code, text.value)
        return outputs

    def _program(self, batch: int, size: tuple[int, ...] | None) -> int:
        """The number of the program for inputs of a size; None: of the first one's."""
        for number, one in enumerate(self.shapes):
            if one.input[0] == batch and (size is None or one.input[2:] == tuple(size)):
                return number
        known = ", ".join(str(one.input) for one in self.shapes)
        raise ConfigError(
            f"no program for a batch of {batch} and size {size}; this file has {known}"
        )

    def _describe(self) -> tuple[ProgramShape, ...]:
        found = []
        for number in range(self._library.codtdq_programs(self._handle)):
            shape = Shape()
            self._library.codtdq_describe(self._handle, number, byref(shape))
            found.append(
                ProgramShape(
                    tuple(shape.input[: shape.input_axes]),
                    tuple(shape.output[: shape.output_axes]),
                    shape.arena_bytes,
                    shape.instructions,
                )
            )
        return tuple(found)

    def _texts(self) -> dict[str, str]:
        found, number = {}, 0
        while (key := self._library.codtdq_key(self._handle, number)) is not None:
            text = self._library.codtdq_text(self._handle, key)
            found[key.decode(errors="replace")] = text.decode(errors="replace")
            number += 1
        return found

    def _open_handle(self) -> int:
        if self._handle is None:
            raise UnsupportedError("this runtime is closed; open the file again")
        return self._handle

    def close(self) -> None:
        """Free its memory; no other thread may be inside of it."""
        if self._handle is not None:
            self._library.codtdq_close(self._handle)
            self._handle = None

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def __repr__(self) -> str:
        shapes = ", ".join("x".join(map(str, one.input)) for one in self.shapes)
        return f"Runtime({self.info.get('model')}, {self.info.get('method')}: {shapes})"


def library_path() -> Path:
    """The shared library, to link C programs with."""
    return native.path()


def include_dir() -> Path:
    """The folder of `codtdq.h`."""
    return Path(__file__).parent / "include"


def _checked_threads(threads: int | None) -> int:
    if threads is None:
        return 0
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 256:
        raise ConfigError(f"threads is {threads!r}; accepted: 1 to 256, or None for all processors")
    return threads


def _check(code: int, text: bytes) -> None:
    if code != OK:
        message = text.decode(errors="replace")
        raise (CheckpointError if code == BAD_FILE else UnsupportedError)(message)
