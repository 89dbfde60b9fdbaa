"""Where the bytes of a packed checkpoint go: every byte of its two files, by what it is for."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codtdq.checkpoint import read_header
from codtdq.checkpoint.files import META, WEIGHTS

FLOAT_CODES, FLOAT_RANGES = ("floats#codes",), ("floats#low", "floats#step")


@dataclass(frozen=True)
class StorageSplit:
    """Bytes by purpose; `total` is the size of both files."""

    packed_weights: int  # codes of low-bit weights
    weight_scales: int  # one per output channel or weight group, float32
    activation_ranges: int  # calibrated radii of static settings
    float_blocks: int  # biases, norms, tables: codes of 8-bit blocks
    float_block_ranges: int  # and the range of each block
    float_tensors: int  # weights and parameters that are stored as they are
    buffers: int  # index tables, masks, counters
    tensor_index: int  # header of the safetensors file
    description: int  # the JSON file: plan, config, hash
    fp32: int  # of the same parameters in float32, for comparison

    @property
    def total(self) -> int:
        """Size of both files."""
        return sum(value for name, value in asdict(self).items() if name != "fp32")

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

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        return {
            **asdict(self),
            "total": self.total,
            "scales": self.scales,
            "metadata": self.metadata,
            "overhead": self.overhead,
            "ratio": self.fp32 / self.total,
        }


def storage_split(directory: str | Path) -> StorageSplit:
    """Split the files that `codtdq.save` wrote."""
    directory = Path(directory)
    header = read_header(directory)
    sizes, index = _tensor_sizes(directory / WEIGHTS)
    plan = header["plan"]
    split = dict.fromkeys(
        (
            "packed_weights",
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
    return StorageSplit(
        **split,
        tensor_index=index,
        description=(directory / META).stat().st_size,
        fp32=4 * int(plan["parameters"]),
    )


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
