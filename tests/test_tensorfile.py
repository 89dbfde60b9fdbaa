"""Tensors come out of a file as they went in, without a copy; what is none is a ValueError."""

import hashlib
import json
import tracemalloc

import pytest
import torch
from safetensors.torch import load, save

from codtdq.tensorfile import read_open, read_tensors

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float16, torch.float32]
DTYPES += [torch.int32, torch.int64, torch.float64, torch.complex64, torch.float8_e4m3fn]


def file_of(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def one(dtype="U8", shape=(4,), offsets=(0, 4), **more):
    return {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}}


def test_tensors_are_those_of_the_library(tmp_path):
    shapes = [(), (0,), (3,), (2, 0, 5), (4, 3, 2)]
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{dtype} {shape}": torch.randint(0, 2, shape, generator=generator).to(dtype)
        for dtype in DTYPES
        for shape in shapes
    }
    data = save(tensors, {"format": "some"})
    (tmp_path / "a").write_bytes(data)
    found, metadata = read_tensors(tmp_path / "a")
    wanted = load(data)
    assert found.keys() == wanted.keys() and metadata == {"format": "some"}
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(
            found[name].view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8)
        )
        assert found[name].untyped_storage().nbytes() == found[name].nbytes, name


def test_a_read_copies_nothing(tmp_path):
    """Beside the tensors, torch's memory, no byte of them is held; each can go by itself."""
    path = tmp_path / "a"
    path.write_bytes(save({name: torch.ones(1 << 21) for name in "abc"}))
    tracemalloc.start()
    found, _ = read_tensors(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) == 3


def test_what_is_hashed_are_the_bytes_of_the_file_in_their_order(tmp_path):
    tensors = {name: torch.randn(n) for name, n in (("a", 1 << 21), ("b", 5), ("c", 1 << 20))}
    data = save({**tensors, "none": torch.empty(0)})
    (tmp_path / "a").write_bytes(data)
    digest = hashlib.sha256()
    with (tmp_path / "a").open("rb") as stream:
        read_open(stream, len(data), digest.update)
    assert digest.hexdigest() == hashlib.sha256(data).hexdigest()


WRONG = {
    "empty": b"",
    "short": b"\0" * 7,
    "header-longer-than-the-file": file_of(one(), b"1234")[:20],
    "header-of-terabytes": (2**40).to_bytes(8, "little") + b"{}",
    "no-json": file_of(b"{"),
    "no-text": file_of(b"\xff\xff"),
    "list": file_of([]),
    "deep": file_of(b"[" * 100_000),
    "long-number": file_of(b'{"a":' + b"1" * 10_000 + b"}"),
    "no-entry": file_of({"a": 1}),
    "more-fields": file_of(one(more=1), b"1234"),
    "unknown-dtype": file_of(one("F7"), b"1234"),
    "dtype-list": file_of(one(["U8"]), b"1234"),
    "negative-side": file_of(one(shape=(-2, -2)), b"1234"),
    "bool-side": file_of(one(shape=(4, True)), b"1234"),
    "float-side": file_of(one(shape=(4.0,)), b"1234"),
    "endless-side": file_of(one(shape=(0, 2**70), offsets=(0, 0))),
    "endless-product": file_of(one(shape=(2**40, 2**40)), b"1234"),
    "three-offsets": file_of(one(offsets=(0, 4, 4)), b"1234"),
    "offsets-turned": file_of(one(offsets=(4, 0)), b"1234"),
    "too-few-bytes": file_of(one(), b"123"),
    "too-many-bytes": file_of(one(), b"12345"),
    "begins-late": file_of(one(offsets=(1, 5)), b"12345"),
    "overlap": file_of({**one(), "b": one(offsets=(2, 6))["a"]}, b"123456"),
    "twice": file_of({**one(), "b": one()["a"]}, b"1234"),
    "name-twice": file_of(b"{%(a)s,%(a)s}" % {b"a": json.dumps(one())[1:-1].encode()}, b"1234"),
    "gap": file_of({**one(), "b": one(offsets=(5, 9))["a"]}, b"123456789"),
    "metadata-number": file_of({"__metadata__": {"a": 1}}),
    "metadata-list": file_of({"__metadata__": ["a"]}),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_what_is_no_safetensors_is_a_value_error(data, tmp_path):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError):
        read_tensors(tmp_path / "a")


def test_a_file_that_becomes_shorter_is_a_value_error(tmp_path):
    data = save({"a": torch.ones(1 << 10)})
    (tmp_path / "a").write_bytes(data[:-1])
    with (tmp_path / "a").open("rb") as stream, pytest.raises(ValueError, match="shorter"):
        read_open(stream, len(data), lambda piece: None)
