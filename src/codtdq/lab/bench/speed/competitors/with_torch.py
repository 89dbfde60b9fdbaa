"""PyTorch's own alternatives: bfloat16, the other memory layout, the compiler."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from codtdq.lab.bench.speed.competitors.network import Network
from codtdq.lab.bench.speed.competitors.runtime import Runtime
from codtdq.lab.bench.speed.competitors.trial import try_torch_bf16
from codtdq.models.weights import save_weights

WHAT = f"torch {torch.__version__}"


def bf16(network: Network, threads: int) -> Runtime:
    """Turn weights and activations into bfloat16: `model.bfloat16()`."""
    network.once("bfloat16 trial", try_torch_bf16)
    model = network.once("bfloat16 copy", lambda: copy.deepcopy(network.model).bfloat16())

    def written() -> Any:
        path = network.folder / "bf16.safetensors"
        save_weights(network.model, path, torch.bfloat16)
        return path

    return Runtime(
        Tensor.bfloat16,
        _forward(model),
        WHAT,
        "bf16",
        files=[network.once("bfloat16 checkpoint", written)],
    )


def channels_last(network: Network, threads: int) -> Runtime:
    """Weights and images in channels-last memory."""
    model = copy.deepcopy(network.model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def prepare(images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last)

    return Runtime(prepare, _forward(model), f"{WHAT}, channels_last", "f32")


def compiled(network: Network, threads: int) -> Runtime:
    """Compile with the default backend; the number of threads is part of the generated code."""
    torch._dynamo.reset()
    model = torch.compile(network.model)
    return Runtime(lambda images: images, _forward(model), f"{WHAT}, torch.compile", "f32")


def _forward(model: Callable[..., Any]) -> Callable[[Tensor], Any]:
    def run(images: Tensor) -> Any:
        with torch.inference_mode():
            return model(images)

    return run
