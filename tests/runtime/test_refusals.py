"""Damaged, truncated, foreign and hostile files are one line each; wrong calls, too."""

import hashlib
import json
import resource

import numpy as np
import pytest
from engine_cases import needs_engine

from codtdq.errors import CheckpointError, CodtdqError
from codtdq.exporting.stream import decoded, encoded
from codtdq.runtime import Runtime

pytestmark = needs_engine


@pytest.fixture(scope="module")
def data(exported):
    return exported("cfrn-small")[1].read_bytes()


def refusal(source):
    with pytest.raises(CheckpointError) as caught:
        Runtime(source)
    text = str(caught.value)
    assert text and "\n" not in text and len(text) < 512
    return text


def parts(data):
    """(header, tensors) of a file."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def sealed(header, tensors):
    """A file with a hash that fits."""
    header["__metadata__"]["sha256"] = "0" * 64
    text = json.dumps(header, separators=(",", ":")).encode()
    whole = len(text).to_bytes(8, "little") + text + tensors
    digest = hashlib.sha256(whole).hexdigest().encode()
    return whole.replace(b"0" * 64, digest, 1)


def test_a_sealed_file_opens(data):
    assert Runtime(sealed(*parts(data))).shapes[0].input == (1, 3, 160, 160)


def test_truncated_files(data, tmp_path):
    for length in (0, 1, 7, 8, 100, len(data) // 2, len(data) - 1):
        refusal(data[:length])
    (tmp_path / "cut.codtdq").write_bytes(data[:5000])
    assert refusal(tmp_path / "cut.codtdq").startswith(str(tmp_path / "cut.codtdq"))
    assert "is there such a file" in refusal(tmp_path / "none.codtdq")
    refusal(tmp_path)  # a folder


def test_foreign_files(data):
    from safetensors.numpy import save

    assert "not a program file" in refusal(save({"x": np.zeros(3, np.float32)}))
    assert "cut off" in refusal(b"PK\x03\x04" + b"x" * 1000)
    refusal(b"\x00" * 64)
    refusal(b"{}" * 500)


def test_a_changed_byte_anywhere_is_found(data):
    for at in range(9, len(data), len(data) // 60):
        changed = bytearray(data)
        changed[at] ^= 4
        refusal(bytes(changed))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_that_is_read_in_pieces_is_hashed_to_its_end(data, threads, tmp_path):
    path, bits = tmp_path / "net.codtdq", np.frombuffer(data, np.uint8)
    for at in (len(data) // 3, len(data) // 2, len(data) - 1):
        bits.copy().tofile(path)
        Runtime(path, threads=threads).close()
        changed = bits.copy()
        changed[at] ^= 16
        changed.tofile(path)
        with pytest.raises(CheckpointError, match="its content does not fit its sha256"):
            Runtime(path, threads=threads)
        bits[:at].tofile(path)
        with pytest.raises(CheckpointError, match="cut off"):
            Runtime(path, threads=threads)


def test_tensors_in_another_order_are_the_same_network(data, tmp_path):
    """What is read in pieces is the last tensor; elsewhere it is read with the others."""
    header, tensors = parts(data)
    metadata = header.pop("__metadata__")
    order = sorted(header, key=lambda name: (name != "u8", header[name]["data_offsets"]))
    moved, made = b"", {"__metadata__": metadata}
    for name in order:
        begin, end = header[name]["data_offsets"]
        made[name] = {**header[name], "data_offsets": [len(moved), len(moved) + end - begin]}
        moved += tensors[begin:end]
    path = tmp_path / "net.codtdq"
    path.write_bytes(sealed(made, moved))
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    assert np.array_equal(Runtime(path).predict(image), Runtime(data).predict(image))


def test_other_versions_say_what_to_install(data):
    header, tensors = parts(data)
    header["__metadata__"]["version"] = "2"
    assert "format version 2; this runtime reads version 1" in refusal(sealed(header, tensors))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h["f32"].update(dtype="F16"), "type F16"),
        (lambda h: h["f32"].update(shape=[3]), "another size than its shape"),
        (lambda h: h["f32"]["data_offsets"].reverse(), "outside of the file"),
        (lambda h: h["f32"].update(data_offsets=[0, 2**60]), "header"),
        (lambda h: h["f32"].update(more=[1]), "header"),
        (lambda h: h.pop("constants"), "gaps"),
        (lambda h: h.update(x={"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}), "overlap"),
        (lambda h: h["__metadata__"].update(postprocess="x"), "postprocess"),
        (lambda h: h["__metadata__"].pop("format"), "not a program file"),
    ],
)  # fmt: skip
def test_headers_that_do_not_fit(data, change, words):
    header, tensors = parts(data)
    change(header)
    assert words in refusal(sealed(header, tensors))


def with_stream(data, name, change):
    """A file of which one stream is another one."""
    header, tensors = parts(data)
    begin, end = header[name]["data_offsets"]
    stream = encoded(change(decoded(tensors[begin:end])))
    moved = len(stream) - (end - begin)
    for key, entry in header.items():
        if key != "__metadata__":
            first, last = entry["data_offsets"]
            entry["data_offsets"] = [first + moved * (first >= end), last + moved * (last >= end)]
    header[name]["shape"] = [len(stream)]
    return sealed(header, tensors[:begin] + stream + tensors[end:])


GREEDY = {
    "float weight": [1, 1 << 15, 1 << 15],
    "quantized weight": [2, 1 << 20, 9, 1 << 10, 4, 0, 0],
    "codes of a palette": [3, 1 << 15, 1, 1 << 15, 1],
    "table of a palette": [3, 1, 1 << 30, 1, 1],
}


def greedy(data, record):
    """The refusal of a file that has one more constant in front of the others."""
    changed = with_stream(data, "constants", lambda old: [old[0] + 1, *record, *old[1:]])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = refusal(changed)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    return said


@pytest.mark.parametrize("record", GREEDY.values(), ids=GREEDY.keys())
def test_files_that_ask_for_memory_they_do_not_pay_for(data, record):
    """Values are there before there is memory for them."""
    assert "fewer values than its constants" in greedy(data, record)


def test_what_repeats_is_bounded_by_the_file(data):
    """A palette of one entry: a byte of codes and four of the table, many gigabytes in memory."""
    header, _ = parts(data)
    codes, floats = (header[name]["shape"][0] for name in ("u8", "f32"))
    assert 4 * codes * floats > 64 * len(data) + (8 << 20)
    assert "larger than any file of its size" in greedy(data, [3, 1, floats, codes, 1])


@pytest.mark.parametrize("at", [4, 9, 10], ids=["input", "output", "arena"])
def test_runs_beyond_every_memory_are_refused(data, at):
    """Sides of input and output, and the arena, which a stream begins with."""

    def larger(old):
        assert old[:5] == [4, 1, 3, 160, 160] and old[5] == 4 and old[10] > 1 << 20
        return [*old[:at], 1 << 34, *old[at + 1 :]]

    said = refusal(with_stream(data, "code.0", larger))
    assert "beyond every size" in said or "takes more than" in said or "is accepted" in said


def test_control_characters_of_a_file_do_not_reach_the_terminal(data):
    header, tensors = parts(data)
    header["__metadata__"]["version"] = "\x1b[31m"
    assert "\x1b" not in refusal(sealed(header, tensors))


def test_wrong_calls(exported):
    _, path = exported("cfrn-small")
    network = Runtime(path)
    image = np.zeros((4, 4, 3), np.uint8)
    for call in (
        lambda: Runtime(path, threads=0),
        lambda: Runtime(path, threads=True),
        lambda: network.predict(image, threshold=0),
        lambda: network.predict(image.astype(np.int32)),
        lambda: network.predict(np.zeros((0, 4, 3), np.uint8)),
        lambda: network.predict(np.zeros((70000, 1, 3), np.uint8)),
        lambda: network.run(np.zeros((1, 3, 8, 8), np.float32)),
        lambda: network.run(np.zeros((1, 3, 160, 160), np.int32)),
        lambda: network.run([1.0]),
        lambda: network.run(np.zeros((0, 3, 160, 160), np.float32)),
    ):
        with pytest.raises(CodtdqError) as caught:
            call()
        assert str(caught.value) and "\n" not in str(caught.value)
    network.close()
    network.close()
    with pytest.raises(CodtdqError, match="closed"):
        network.predict(image)


def test_networks_that_give_no_mask_say_so(exported):
    _, path = exported("cfrn-small")
    network = Runtime(path)
    x = np.full((1, 3, 160, 160), np.nan, np.float32)
    assert np.isnan(network.run(x)).any()  # logits are the caller's business
