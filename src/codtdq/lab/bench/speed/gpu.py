"""The paper's runtime table on a GPU: weights, images per second, latency, peak memory.

Measured as the paper does: whole networks, a batch of 4, CUDA events after a warm-up, memory at its
peak as torch's allocator counts it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.api import load
from codtdq.engine import backend_of
from codtdq.engine.triton import device
from codtdq.errors import UnsupportedError
from codtdq.lab.bench.speed.coverage import Work, count_work, coverage_of
from codtdq.lab.bench.speed.subjects import BASELINE, Subject, Subjects
from codtdq.operators import quant_operators

MODEL, METHODS, BATCH = "cfrn", ("w4a4", "cod-tdq"), 4  # of the paper's table
WARM_UP, REPEATS = 10, 50


class CudaMeter:
    """Times and memory of the current CUDA device."""

    def describe(self) -> dict[str, Any]:
        """Return the device, and what torch may round FP32 products to on it."""
        return {
            "device": torch.cuda.get_device_name(),
            "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
            "tf32_convolution": torch.backends.cudnn.allow_tf32,
        }

    def reset(self) -> None:
        """Forget the peak so far and what earlier networks left in the cache."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def times(self, run: Callable[[], object], repeats: int) -> list[float]:
        """Return the milliseconds of each call between two CUDA events."""
        pairs = []
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in pairs]

    def peak_bytes(self) -> int:
        """Return the most bytes that were allocated at once since `reset`."""
        return torch.cuda.max_memory_allocated()


def require_gpu() -> None:
    """Fail in one line before anything is quantized."""
    reason = device.unavailable_reason()
    if reason is None and device.interpreted():
        reason = f"{device.INTERPRET}=1 runs kernels on the CPU, whose time says nothing"
    if reason is not None:
        raise UnsupportedError(f"backend 'triton' cannot be measured: {reason}")


def run_gpu_latency(
    subjects: Subjects,
    *,
    batches: Sequence[int] = (BATCH,),
    warm_up: int = WARM_UP,
    repeats: int = REPEATS,
    meter: CudaMeter | None = None,
) -> dict[str, Any]:
    """Time FP32 in eager torch and every method on the Triton kernels, one after the other.

    meter: what measures; the current CUDA device unless given.
    """
    if meter is None:
        require_gpu()
        meter = CudaMeter()
    work = count_work(subjects.baseline, subjects.images(1))
    rows, coverage = [], {}
    for name, subject in subjects.members.items():
        model = _on_device(subject)
        for batch in batches:
            images = subjects.images(batch).to(device.target())
            found = measure(model, images, warm_up, repeats, meter)
            rows.append(
                {
                    "candidate": name,
                    "batch": batch,
                    "weight_bytes": subject.bytes,
                    **found,
                    "execution": _execution(model),
                }
            )
        if backend_of(model) is not None:
            coverage[name] = _coverage(model, work)
        model.to("cpu")  # the next peak is without this one
        del model
    base = {row["batch"]: row["ms_per_image"] for row in rows if row["candidate"] == BASELINE}
    for row in rows:
        row["speedup"] = base[row["batch"]] / row["ms_per_image"]
    return {
        "model": subjects.architecture,
        "weights": subjects.weights,
        "input_size": subjects.input_size,
        "warm_up": warm_up,
        "repeats": repeats,
        **meter.describe(),
        "rows": rows,
        "coverage": coverage,
    }


def measure(
    model: nn.Module, images: Tensor, warm_up: int, repeats: int, meter: CudaMeter
) -> dict[str, Any]:
    """Milliseconds per image (median of the passes) and peak bytes of a model on the device."""
    meter.reset()
    with torch.inference_mode():
        for _ in range(warm_up):  # compiles the kernels and fills the allocator
            model(images)
        samples = meter.times(lambda: model(images), repeats)
    median = statistics.median(samples) / images.shape[0]
    return {
        "ms_per_image": median,
        "samples_ms": samples,
        "images_per_second": 1e3 / median,
        "peak_bytes": meter.peak_bytes(),
    }


def _on_device(subject: Subject) -> nn.Module:
    if subject.name == BASELINE:
        return subject.model.to(device.target())
    return load(subject.path, backend="triton")


def _execution(model: nn.Module) -> str:
    record = backend_of(model)
    return "torch" if record is None else record.execution


def _coverage(model: nn.Module, work: Work) -> dict[str, Any]:
    record = backend_of(model)
    assert record is not None
    found = coverage_of(work, set(quant_operators(model)), record).to_dict()
    return {**found, "fallbacks": dict(record.fallbacks)}
