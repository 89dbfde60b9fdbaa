"""Carriers against today's group kernels and torch FP32: encoders and products, shape by shape.

    OMP_NUM_THREADS=1 python benchmarks/carriers.py               # --threads 2, --passes 30, ...

All candidates of a shape run interleaved in one process, pass by pass; a time is the least of all
passes (the machine may be shared), a ratio the median of the ratios inside a pass. Weights: 4 bits
in groups of 32. GOP/s counts two operations for each multiplication.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from codtdq.engine.cpu import carriers, interface, library, products
from codtdq.engine.cpu.operators import quant_spec
from codtdq.engine.cpu.products import Window
from codtdq.engine.cpu.weights import PackedWeights

SHAPES = [
    (9216, 128, 384),
    (9216, 512, 128),
    (2304, 256, 768),
    (2304, 1024, 256),
    (576, 512, 1536),
    (576, 512, 2048),
    (576, 2048, 512),
    (144, 1024, 4096),
    (144, 4096, 1024),
    (10816, 64, 512),
]
CONVOLUTIONS = [(48, 128, 128, 3), (24, 256, 256, 3), (96, 64, 64, 3), (12, 512, 512, 3)]
GROUP = 32


def measure(candidates: dict[str, Callable[[], object]], passes: int) -> dict[str, list[float]]:
    """Seconds of every candidate in every pass."""
    for run in candidates.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(passes):
        for name, run in candidates.items():
            run()  # so that none finds the caches as another one left them
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def ratio(times: dict[str, list[float]], name: str, other: list[float] | str) -> float:
    """How many times faster a candidate is."""
    base = times[other] if isinstance(other, str) else other
    return statistics.median(a / b for a, b in zip(base, times[name]))


def weights(outputs: int, taps: int, inputs: int) -> tuple[carriers.CarrierWeights, PackedWeights]:
    codes = torch.randint(-8, 8, (outputs, taps, inputs), dtype=torch.int8)
    multiplier = torch.randint(1, 16, (outputs, taps, -(-inputs // GROUP)), dtype=torch.int8)
    factor = torch.rand(outputs)
    ours = carriers.CarrierWeights.pack(codes, factor, multiplier, group=GROUP)
    scale = multiplier.float().flatten(1)
    return ours, PackedWeights.pack(codes, scale, GROUP, GROUP, factor)


def specs() -> dict[str, tuple[interface.QuantSpec, bool]]:
    """Encoders: their spec, and whether they have a zero-point."""
    plain = quant_spec(4, GROUP, False, False, None, None, None)
    return {
        "max": (plain, False),
        "dcrp": (quant_spec(4, GROUP, False, False, None, 1.0, 0.2), False),
        "zero": (plain, True),
    }


def linear(rows: int, inputs: int, outputs: int, passes: int) -> str:
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    ours, today = weights(outputs, 1, inputs)
    window = Window((1, 1, rows))
    kinds = specs()
    dcrp = kinds["dcrp"][0]
    encoded = carriers.carry_groups(x, dcrp)
    codes = products.encode_groups(x, dcrp, GROUP)
    bias = torch.randn(outputs)
    candidates: dict[str, Callable[[], object]] = {
        "fp32": lambda: F.linear(x, weight, bias),
        "today encode": lambda: products.encode_groups(x, dcrp, GROUP),
        "today product": lambda: products.product(codes, today, window, bias, "none"),
        "product": lambda: carriers.carrier_product(encoded, ours, window, bias),
        **{
            name: lambda spec=spec, zero=zero: carriers.carry_groups(x, spec, asymmetric=zero)
            for name, (spec, zero) in kinds.items()
        },
    }
    times = measure(candidates, passes)
    values, operations = rows * inputs, 2 * rows * inputs * outputs
    least = {name: min(each) for name, each in times.items()}
    both = [a + b for a, b in zip(times["dcrp"], times["product"])]
    before = [a + b for a, b in zip(times["today encode"], times["today product"])]
    each = " ".join(
        f"{1e9 * least[n] / values:5.3f}" for n in ("today encode", "dcrp", "max", "zero")
    )
    speed = " ".join(
        f"{operations / least[n] / 1e9:5.0f}" for n in ("fp32", "today product", "product")
    )
    gain = statistics.median(a / b for a, b in zip(before, both))
    gain32 = statistics.median(a / b for a, b in zip(times["fp32"], both))
    return f"{rows:5}x{inputs:4}x{outputs:4} | {each} | {speed} | {gain:5.2f} {gain32:5.2f}"


def convolution(side: int, inputs: int, outputs: int, kernel: int, passes: int) -> str:
    x = torch.randn(1, inputs, side, side)
    weight = torch.randn(outputs, inputs, kernel, kernel)
    ours, today = weights(outputs, kernel * kernel, inputs)
    pad = (kernel // 2, kernel // 2)
    window = Window((1, side, side), (kernel, kernel), (1, 1), pad)
    step = x.abs().amax((0, 2, 3)) / 7
    nhwc = x.contiguous(memory_format=torch.channels_last)
    encoded = carriers.carry_fixed(nhwc, 4, step)
    codes = products.encode_groups(nhwc, specs()["max"][0], GROUP)
    candidates: dict[str, Callable[[], object]] = {
        "fp32": lambda: F.conv2d(x, weight, None, 1, pad),
        "today": lambda: products.product(codes, today, window, None, "none"),
        "product": lambda: carriers.carrier_product(encoded, ours, window),
        "nchw": lambda: carriers.carry_fixed(x, 4, step),
        "nhwc": lambda: carriers.carry_fixed(nhwc, 4, step),
        "depthwise": lambda: carriers.carrier_depthwise(
            encoded, torch.ones(kernel * kernel, inputs, dtype=torch.int8), step, window
        ),
    }
    least = {name: min(each) for name, each in measure(candidates, passes).items()}
    operations = 2 * side * side * inputs * outputs * kernel * kernel
    each = " ".join(f"{1e9 * least[n] / x.numel():5.3f}" for n in ("nchw", "nhwc", "depthwise"))
    speed = " ".join(f"{operations / least[n] / 1e9:5.0f}" for n in ("fp32", "today", "product"))
    return f"{side}x{side} {inputs}->{outputs} {kernel}x{kernel} | {each} | {speed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--set", help="instruction set, for example avx2")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    library.keep_memory()
    if options.set:
        library.select(options.set)
    torch.manual_seed(0)
    print(f"set {library.instruction_set()}, {options.threads} threads, torch {torch.__version__}")
    print(
        "rows x inputs x outputs | ns/value: today dcrp, carriers dcrp, max, zero-point | GOP/s: "
        "FP32, today, carriers | encode (dcrp) + product: times today, times FP32"
    )
    for shape in SHAPES:
        print(linear(*shape, options.passes), flush=True)
    print(
        "convolution | ns/value: per channel NCHW, NHWC, depthwise (per output) | GOP/s: FP32, "
        "today, carriers"
    )
    for conv in CONVOLUTIONS:
        print(convolution(*conv, options.passes), flush=True)


if __name__ == "__main__":
    main()
