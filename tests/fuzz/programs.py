"""Structured mutations of program files: a one-line refusal, or a network that runs.

    python tests/fuzz/programs.py --count 1000000 --seed 0      # more options: campaign.py

Numbers of the streams, values of the constants and the header are changed, and every hash made to
fit, so that the checks behind it are what is tested; a share has bytes changed at random. What is
accepted runs once where its work is small. A traceback, a message of two lines, or an input that
takes five seconds or much memory is a failure, printed with the number that repeats it.
`tests/fuzz/program_target.cpp` does the same under sanitizers, guided by coverage.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import campaign
import numpy as np
from checkpoints import IMAGE, tiny

import codtdq
from codtdq.errors import CodtdqError
from codtdq.exporting.stream import decoded, encoded
from codtdq.models.registry import ModelInfo
from codtdq.runtime import Runtime

METHODS = ("float", "cod-tdq", "cod-tdq-plus", "w8a8", "dcrp-only-fixed")
MOST_WORK = 1 << 20  # elements of the operands of what is run
MOST_BYTES = 4 << 20  # memory of a run
RUN_SHARE = 0.5
STREAMS = ("constants", "code.0")
WIDTH = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "U16": 2, "I8": 1, "U8": 1}


def sealed(header: dict[str, Any], tensors: bytes) -> bytes:
    """A file with a hash that fits, where the header has room for one."""
    metadata = header.get("__metadata__")
    if isinstance(metadata, dict):
        metadata["sha256"] = "0" * 64
    text = json.dumps(header, separators=(",", ":")).encode()
    whole = len(text).to_bytes(8, "little") + text + tensors
    return whole.replace(b"0" * 64, hashlib.sha256(whole).hexdigest().encode(), 1)


@dataclass
class Seed:
    """A valid file in parts."""

    method: str
    metadata: dict[str, str]
    tensors: dict[str, tuple[str, bytes]]
    streams: dict[str, list[int]]

    @classmethod
    def of(cls, method: str, folder: Path) -> Seed:
        model = tiny()
        if method != "float":
            model = codtdq.quantize(model, method, calibration=[IMAGE] * 2, backend="cpu")
        model.info = ModelInfo(name="tiny", description="", input_size=6, size_multiple=1)
        data = codtdq.export(model, folder / f"{method}.codtdq").path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        metadata = header.pop("__metadata__")
        tensors = {}
        for name, entry in header.items():
            begin, end = (8 + length + at for at in entry["data_offsets"])
            tensors[name] = (entry["dtype"], data[begin:end])
        streams = {name: decoded(tensors[name][1]) for name in STREAMS}
        assert all(encoded(numbers) == tensors[name][1] for name, numbers in streams.items())
        return cls(method, metadata, tensors, streams)


def wild(old: int, rng: random.Random) -> int:
    """A number in the place of another."""
    choices = (old + 1, old - 1, 2 * old, old // 2, -old, 0, 1, -1, 7, 255, 2**31, 2**46, 2**62)
    return max(-(2**63), min(2**63 - 1, rng.choice((*choices, rng.randrange(1 << 62)))))


def mutate(seed: Seed, rng: random.Random) -> tuple[bytes, dict[str, list[int]]]:
    """A file with a few changes, and its streams."""
    streams = {name: list(numbers) for name, numbers in seed.streams.items()}
    tensors, metadata = dict(seed.tensors), dict(seed.metadata)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        act, numbers = rng.random(), streams[rng.choice(STREAMS)]
        if act < 0.6 and numbers:
            at = rng.randrange(len(numbers))
            numbers[at] = wild(numbers[at], rng)
        elif act < 0.7 and numbers:
            at, other = rng.randrange(len(numbers)), rng.randrange(len(numbers))
            numbers[at] = numbers[other]
        elif act < 0.9:
            name = rng.choice([name for name in tensors if tensors[name][1]])
            dtype, data = tensors[name]
            changed = bytearray(data)
            at = rng.randrange(max(1, len(changed) // WIDTH[dtype])) * WIDTH[dtype]
            value = rng.choice((b"\xff", b"\x00", b"\x7f", b"\x80", rng.randbytes(1)))
            changed[at : at + WIDTH[dtype]] = (value * 8)[: WIDTH[dtype]]
            if rng.random() < 0.2:
                del changed[rng.randrange(len(changed)) :]
            tensors[name] = (dtype, bytes(changed))
            if name in streams:
                streams[name] = decoded(tensors[name][1])
        else:
            key = rng.choice(list(metadata))
            metadata[key] = rng.choice(("", "2", "none", "binary", "\x7f", "é", "x" * 300))
    for name, numbers in streams.items():
        if tensors[name] == seed.tensors[name]:
            tensors[name] = ("U8", encoded(numbers))
        else:  # changed as bytes
            streams[name] = decoded(tensors[name][1])
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, (dtype, data) in tensors.items():
        shape = [len(data) // WIDTH[dtype]]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    if rng.random() < 0.05:
        entry = header[rng.choice(list(tensors))]
        entry[rng.choice(list(entry))] = rng.choice(("F32", [0], [1, 2], [-1, 5], [2**40], 3, None))
    data = bytearray(sealed(header, b"".join(data for _, data in tensors.values())))
    if rng.random() < 0.02:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data), streams


def work_of(numbers: list[int]) -> int:
    """Elements of the operands of a program; its stream is one that was accepted."""
    values = iter(numbers)
    for _ in range(2):
        for _ in range(next(values)):
            next(values)
    next(values)
    instructions, operands, _, _ = (next(values) for _ in range(4))
    for _ in range(4 * instructions):
        next(values)
    total = 0
    for _ in range(operands):
        if next(values) == 0:
            continue
        _, _, axes, _ = (next(values) for _ in range(4))
        size = 1
        for _ in range(axes):
            size *= next(values)
            next(values)
        total += size
    return total


class Fuzzer(campaign.Fuzzer):
    """Program files of some methods, changed."""

    refusals = CodtdqError
    longest = 512

    def __init__(self, folder: Path, methods: tuple[str, ...] = METHODS) -> None:
        seeds = [Seed.of(method, folder) for method in methods]
        for seed in seeds:  # what is changed is sound to begin with
            network = Runtime(folder / f"{seed.method}.codtdq", threads=1)
            network.run(np.zeros(network.shapes[0].input, np.float32))
        super().__init__(seeds)

    def prepare(self, seed: Seed, rng: random.Random) -> tuple[bytes, dict[str, list[int]]]:
        """A file with some changes, and its streams."""
        return mutate(seed, rng)

    def try_out(self, seed: Seed, prepared: Any, rng: random.Random) -> str:
        """Open it; run a share of what is small."""
        data, streams = prepared
        with Runtime(data, threads=1) as network:
            shape, wanted = network.shapes[0], rng.random() < RUN_SHARE
            bytes_of = shape.arena_bytes + 4 * (math.prod(shape.input) + math.prod(shape.output))
            if wanted and bytes_of < MOST_BYTES and work_of(streams["code.0"]) < MOST_WORK:
                self.counts["tried to run"] += 1
                network.run(np.zeros(shape.input, np.float32))
                self.counts["run"] += 1
        return "accepted"


def write_valid(folder: Path) -> None:
    """The files that mutations begin with."""
    folder.mkdir(parents=True, exist_ok=True)
    for method in METHODS:
        Seed.of(method, folder)


if __name__ == "__main__":
    sys.exit(campaign.main(str(__doc__), "programs", Fuzzer))
