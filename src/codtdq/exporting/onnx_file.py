"""`codtdq export --to onnx`: the network for other runtimes, its weights in 4 bits.

Both contracts keep the quantized weights as codes (`DequantizeLinear` of opset 21). `portable`
leaves activations float: what stock runtimes compute well. `exact` computes codes of activations
and whole sums as the model does, in plain operators.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codtdq._version import __version__
from codtdq.environment import install_hint
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.evaluation.predict import info_of
from codtdq.exporting.onnx_deviation import Deviation, measure_deviation
from codtdq.exporting.onnx_graph import strip
from codtdq.exporting.onnx_twins import exact_twin, float_twin
from codtdq.exporting.onnx_weights import StoredWeight
from codtdq.io import atomic_path
from codtdq.models.registry import ModelInfo
from codtdq.numerics.acceleration import plain
from codtdq.operators import quant_operators
from codtdq.operators.record import is_quantized, record_of

OPSET = 21  # the first with 4-bit types and blocks
INPUT, OUTPUT = "image", "logits"
TWINS = {"portable": float_twin, "exact": exact_twin}  # contracts


@dataclass(frozen=True)
class ExportedOnnx:
    """What an ONNX file holds, in numbers."""

    path: Path
    bytes: int
    float_bytes: int  # of the parameters in float32
    model: str
    method: str
    contract: str
    packed: int  # operators whose weights are stored as codes
    operators: int  # quantized ones that the mask depends on
    deviation: Deviation | None  # of its masks; None: not measured

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {**asdict(self), "path": str(self.path)}


def export_onnx(
    model: nn.Module,
    path: str | Path,
    *,
    contract: str = "portable",
    size: tuple[int, int] | None = None,
    batch: int = 1,
    input_size: int | None = None,
) -> ExportedOnnx:
    """Write the mask logits of a model as one ONNX file.

    contract: `portable`, or `exact`.
    size: (height, width) of the input; by default the model's own.
    """
    _check_installed()
    import onnx

    info = info_of(model, input_size)
    size = size or (info.input_size, info.input_size)
    info.check_size(*size)
    if contract not in TWINS:
        raise ConfigError(f"contract {contract!r}; accepted: {', '.join(TWINS)}")
    if contract == "exact" and not quant_operators(model):
        raise UnsupportedError(f"{info.name} is not quantized; use --contract portable")
    twin, weights = TWINS[contract](model)
    document = _exported(twin, info, torch.zeros(batch, 3, *size))
    packed = _exchange(document, weights)
    if weights and not packed:
        raise UnsupportedError("no weight is in the graph under its name")
    unread = len(weights) - packed  # of operators that no mask depends on
    method = record_of(model).name if is_quantized(model) else "float32"
    texts = {
        "model": info.name,
        "method": method,
        "contract": contract,
        "codtdq": __version__,
        "postprocess": info.postprocess,
        "mean": " ".join(map(str, info.mean)),
        "std": " ".join(map(str, info.std)),
    }
    strip(document)
    onnx.helper.set_model_props(document, texts)
    onnx.checker.check_model(document)
    with atomic_path(path) as temporary:
        temporary.write_bytes(document.SerializeToString())
    return ExportedOnnx(
        Path(path),
        Path(path).stat().st_size,
        4 * _parameter_count(model),
        info.name,
        method,
        contract,
        packed,
        len(quant_operators(model)) - unread,
        measure_deviation(Path(path), model, twin if contract == "portable" else None),
    )


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"ONNX files are written with {error.name}, which is not installed; "
            f"run {install_hint('onnx')}"
        ) from error


def _parameter_count(model: nn.Module) -> int:
    """Of the model in float32."""
    quantized = quant_operators(model).values()
    weights = sum(math.prod(one.weight_scheme.shape) for one in quantized)
    return weights + sum(one.numel() for one in model.parameters())


class _Mask(nn.Module):
    """The network with its mask alone."""

    def __init__(self, network: nn.Module, info: ModelInfo) -> None:
        super().__init__()
        self.network, self._pick = network, info.mask_logits

    def forward(self, image: Tensor) -> Tensor:
        return self._pick(self.network(image))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what the exporter tells of its own packages; what matters is raised."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _exported(model: nn.Module, info: ModelInfo, example: Tensor) -> Any:
    with torch.no_grad(), plain(), _quiet():  # kernels of ours are no part of a graph
        made = torch.onnx.export(
            _Mask(model, info).eval(),
            (example,),
            dynamo=True,
            opset_version=OPSET,
            optimize=False,  # weights keep their names
            verbose=False,
            input_names=[INPUT],
            output_names=[OUTPUT],
        )
    assert made is not None
    return made.model_proto


def _exchange(document: Any, weights: dict[str, StoredWeight]) -> int:
    """Put codes and scales in the place of float weights; returns how many the graph reads."""
    graph = document.graph
    read = {name for node in graph.node for name in node.input}
    # what a scheme holds beside what its operator reads is no part of the graph
    kept = [one for one in graph.initializer if one.name in read and one.name not in weights]
    found = [weights[one.name] for one in graph.initializer if one.name in read & weights.keys()]
    nodes = [node for stored in found for node in stored.nodes] + list(graph.node)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    for stored in found:
        graph.initializer.extend(stored.initializers)
    return len(found)
