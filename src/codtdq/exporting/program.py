"""`codtdq.export(model, path)`: a model on the engine becomes a program file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codtdq._version import __version__
from codtdq.engine import backend_of, use_backend
from codtdq.engine.program.constants import Pool
from codtdq.engine.program.encoding import KINDS
from codtdq.engine.program.program import Program
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.evaluation.batching import batch_size_for
from codtdq.evaluation.predict import info_of
from codtdq.exporting.program_file import write_program_file
from codtdq.models.registry import ModelInfo
from codtdq.operators import quant_operators
from codtdq.operators.record import is_quantized, record_of

CHAIN, FLOAT = KINDS["chain"], "float32"
NAMES = {number: name for name, number in KINDS.items()}


@dataclass(frozen=True)
class ExportedProgram:
    """What a program file holds, in numbers."""

    path: Path
    bytes: int  # of the file
    model: str
    method: str
    shapes: tuple[tuple[int, ...], ...]  # of the inputs that it takes
    arena_bytes: tuple[int, ...]  # memory of a run for each of them
    operators: dict[str, int]  # instructions of the first, by kind, those inside of chains too

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "out": str(self.path),
            "bytes": self.bytes,
            "model": self.model,
            "method": self.method,
            "programs": [
                {"input": list(shape), "arena_bytes": arena}
                for shape, arena in zip(self.shapes, self.arena_bytes)
            ],
            "operators": self.operators,
        }


def export_program(
    model: nn.Module,
    path: str | Path,
    *,
    sizes: Sequence[tuple[int, int]] = (),
    batch: int = 1,
    input_size: int | None = None,
) -> ExportedProgram:
    """Write the mask of a model, quantized or float, as programs of the native engine.

    sizes: (height, width) of the inputs, the first one for images; by default the model's own.
    batch: how many inputs one run may take; a file with more than 1 has programs for 1 and for so
        many, and a reader cuts other numbers.
    input_size: of a model that declares none.
    """
    info = info_of(model, input_size)
    sizes = list(sizes) or [(info.input_size, info.input_size)]
    _check(sizes, info, batch_size_for(model, batch))
    _put_on_engine(model)
    pool = Pool()
    programs = [
        _captured(model, info, (count, 3, *size), pool)
        for size in sizes
        for count in sorted({1, batch})
    ]
    method = record_of(model).name if is_quantized(model) else FLOAT
    texts = {
        "model": info.name,
        "method": method,
        "codtdq": __version__,
        "postprocess": info.postprocess,
        "resize": "bilinear, antialiased, 8 bits",
    }
    written = write_program_file(path, programs, texts, info.mean, info.std)
    return ExportedProgram(
        written,
        written.stat().st_size,
        info.name,
        method,
        tuple(program.input_shapes[0] for program in programs),
        tuple(program.arena_bytes for program in programs),
        dict(Counter(_kinds(programs[0])).most_common()),
    )


def _check(sizes: Sequence[tuple[int, int]], info: ModelInfo, batch: int) -> None:
    for size in sizes:
        info.check_size(*size)
    if len(set(sizes)) < len(sizes):
        raise ConfigError("a size was given twice; give each once")
    assert batch >= 1


def _put_on_engine(model: nn.Module) -> None:
    """Have every quantized operator executed natively, or say which one is not."""
    if not quant_operators(model):
        return
    record = backend_of(model)
    if record is None or record.name != "cpu":
        record = use_backend(model, "cpu")
    if record.fallbacks:
        name, reason = next(iter(record.fallbacks.items()))
        raise UnsupportedError(
            f"{len(record.fallbacks)} operators cannot leave torch, e.g. {name}: {reason}"
        )


def _captured(
    model: nn.Module, info: ModelInfo, shape: tuple[int, int, int, int], pool: Pool
) -> Program:
    def forward(image: Tensor) -> Tensor:
        return info.mask_logits(type(model).forward(model, image))

    program = Program(forward, (torch.zeros(shape),), pool=pool)
    if len(program.output_shapes) != 1:
        raise UnsupportedError("the mask does not depend on the image")
    return program


def _kinds(program: Program) -> Iterator[str]:
    """Kinds of instructions; of a chain, those of its stages."""
    arrays = program.arrays
    for record in arrays.records[: arrays.code.instruction_count]:
        if record.kind != CHAIN:
            yield NAMES[record.kind]
            continue
        ints = arrays.ints[record.first_int : record.first_int + record.int_count]
        at = 2 + ints[1]  # rows, slots and their sizes
        stages, at = ints[at], at + 1
        for _ in range(stages):
            kind, operands, count = ints[at : at + 3]
            yield NAMES[kind]
            at += 4 + 4 * operands + count
