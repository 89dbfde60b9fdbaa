"""The paper's runtime table on a GPU: weights, images per second, latency, peak memory.

Measured as the paper does: whole networks, a batch of 4, CUDA events after a warm-up, memory at its
peak as torch's allocator counts it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.api import load
from codtdq.backends import backend_of
from codtdq.bench.speed.coverage import count_work, coverage_of
from codtdq.bench.speed.subjects import BASELINE, Subjects
from codtdq.convert import quant_operators
from codtdq.errors import UnsupportedError
from codtdq.gpu import device

WARM_UP, REPEATS = 10, 50


def require_gpu() -> None:
    """Fail in one line before anything is quantized."""
    reason = device.unavailable_reason()
    if reason is None and device.interpreted():
        reason = f"{device.INTERPRET}=1 runs kernels on the CPU, whose time says nothing"
    if reason is not None:
        raise UnsupportedError(f"backend 'triton' cannot be measured: {reason}")


def run_gpu_latency(
    subjects: Subjects, *, batch: int = 4, warm_up: int = WARM_UP, repeats: int = REPEATS
) -> dict[str, Any]:
    """Time FP32 in eager torch and every method on the Triton kernels, one after the other."""
    require_gpu()
    work = count_work(subjects.baseline, subjects.images(1))
    images = subjects.images(batch).to(device.target())
    rows = []
    for name, subject in subjects.members.items():
        if name == BASELINE:
            model = subject.model.to(device.target())
        else:
            model = load(subject.path, backend="triton")
        row = {"candidate": name, "batch": batch, **measure(model, images, warm_up, repeats)}
        record = backend_of(model)
        if record is not None:
            row["coverage"] = coverage_of(work, set(quant_operators(model)), record).to_dict()
            row["fallbacks"] = dict(record.fallbacks)
            row["execution"] = record.execution
        rows.append(row)
        model.to("cpu")  # the next peak is without this one
        del model
    return {
        "model": subjects.architecture, "weights": subjects.weights,
        "input_size": subjects.input_size, "device": torch.cuda.get_device_name(), "rows": rows,
    }  # fmt: skip


def measure(model: nn.Module, images: Tensor, warm_up: int, repeats: int) -> dict[str, Any]:
    """Milliseconds per image and peak bytes of a model on a CUDA device."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    samples = event_times(lambda: model(images), warm_up, repeats)
    per_image = [value / images.shape[0] for value in samples]
    median = statistics.median(per_image)
    return {
        "ms_per_image": median, "samples_ms": samples, "images_per_second": 1e3 / median,
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }  # fmt: skip


def event_times(run: Callable[[], object], warm_up: int, repeats: int) -> list[float]:
    """Milliseconds of each call between two CUDA events."""
    with torch.inference_mode():
        for _ in range(warm_up):  # compiles the kernels and fills the allocator
            run()
        pairs = []
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairs]
