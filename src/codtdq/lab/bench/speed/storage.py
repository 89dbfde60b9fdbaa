"""Where the bytes of a packed checkpoint go: every byte of its two files, by what it is for."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codtdq.checkpoint import read_header
from codtdq.checkpoint.files import META
from codtdq.numerics.packing import NIBBLE_BITS

FLOAT_CODES, FLOAT_RANGES = ("floats#codes",), ("floats#low", "floats#step")
INT32, FIELDS = 4, 3


@dataclass(frozen=True)
class StorageSplit:
    """Bytes by purpose; `total` is the size of both files."""

    packed_weights: int  # codes of low-bit weights, two to a byte up to 4 bits
    row_padding: int  # half bytes at the end of outputs with an odd number of weights
    weight_scales: int  # one per output channel or weight group
    activation_ranges: int  # calibrated radii of static settings
    float_blocks: int  # biases, norms, tables: codes of 8-bit blocks
    float_block_ranges: int  # and the range of each block
    float_tensors: int  # weights and parameters that are stored as they are
    buffers: int  # index tables, masks, counters
    tensor_index: int  # header of the safetensors file
    description: int  # the JSON file: plan, config, hash
    fp32: int  # of the same parameters in float32, for comparison
    # What the paper calls indexing metadata, without names: an int32 for each size of a packed
    # weight and three more (rank, bits, group) are the 4,364 bytes that it states of CFRN.
    shapes: int

    @property
    def total(self) -> int:
        """Size of both files."""
        return sum(v for name, v in asdict(self).items() if name not in ("fp32", "shapes"))

    @property
    def scales(self) -> int:
        """All ranges: of weights, activations and float blocks."""
        return self.weight_scales + self.activation_ranges + self.float_block_ranges

    @property
    def metadata(self) -> int:
        """What describes the tensors."""
        return self.tensor_index + self.description

    @property
    def overhead(self) -> float:
        """Weight scales and metadata, as a share of the packed weights."""
        return (self.weight_scales + self.metadata) / max(self.packed_weights, 1)

    @property
    def bare_overhead(self) -> float:
        """Weight scales and shapes, as a share of the packed weights: the paper's 0.341 %."""
        return (self.weight_scales + self.shapes) / max(self.packed_weights, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        return {
            **asdict(self),
            "total": self.total,
            "scales": self.scales,
            "metadata": self.metadata,
            "overhead": self.overhead,
            "bare_overhead": self.bare_overhead,
            "ratio": self.fp32 / self.total,
        }


def storage_split(directory: str | Path) -> StorageSplit:
    """Split the files that `codtdq.save` wrote."""
    directory = Path(directory)
    header = read_header(directory)
    sizes, index = _tensor_sizes(directory / header["weights"])
    plan = header["plan"]
    split = dict.fromkeys(
        (
            "packed_weights",
            "row_padding",
            "weight_scales",
            "activation_ranges",
            "float_blocks",
            "float_block_ranges",
            "float_tensors",
            "buffers",
        ),
        0,
    )
    for name, (size, floating) in sizes.items():
        split[_purpose(name, floating)] += size
    split["row_padding"] = _row_padding(header["operators"])
    split["packed_weights"] -= split["row_padding"]
    return StorageSplit(
        **split,
        tensor_index=index,
        description=(directory / META).stat().st_size,
        fp32=4 * int(plan["parameters"]),
        shapes=sum(
            INT32 * (len(site["shape"]) + FIELDS) for site in plan["sites"] if "weight" in site
        ),
    )


def _row_padding(operators: dict[str, Any]) -> int:
    """Half bytes, in whole bytes, that rows of an odd number of 4-bit codes leave empty."""
    half_bytes = 0
    for parts in operators.values():
        weight = parts.get("weight") or {}
        shape, bits = weight.get("shape"), weight.get("bits")
        if shape and bits is not None and bits <= NIBBLE_BITS:
            half_bytes += shape[0] * (math.prod(shape[1:]) % 2)
    return half_bytes // 2


def _purpose(name: str, floating: bool) -> str:
    if name in FLOAT_CODES:
        return "float_blocks"
    if name in FLOAT_RANGES:
        return "float_block_ranges"
    if ".weight_scheme." in name:
        field = name.rpartition(".")[2]
        return {"packed": "packed_weights", "values": "float_tensors"}.get(field, "weight_scales")
    if ".input_scheme." in name:
        return "activation_ranges"
    # compact forms (`name#narrow`, `name#palette...`) are only given to tables and masks
    return "float_tensors" if floating and "#" not in name else "buffers"


def _tensor_sizes(path: Path) -> tuple[dict[str, tuple[int, bool]], int]:
    """(bytes, whether it is a float) of every stored tensor, and the bytes of the file's header."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        entries = json.loads(stream.read(length))
    entries.pop("__metadata__", None)
    sizes = {
        name: (entry["data_offsets"][1] - entry["data_offsets"][0], entry["dtype"].startswith("F"))
        for name, entry in entries.items()
    }
    return sizes, 8 + length
