"""Roofline estimates of CFRN and ESCNet on two GPUs, from the launches that a forward pass makes.

    python benchmarks/roofline.py            # writes results/roofline/*.md

Every kernel launch and every torch operation of one forward pass is bounded from below by the time
its bytes take at the device's bandwidth and its operations at the device's peak. The sum over the
network is an estimate, not a measurement; the assumptions are part of the output.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from codtdq.engine.triton.launch import Launch
from codtdq.lab.bench.speed.coverage import count_work
from codtdq.lab.bench.speed.gpu_layers import (
    Survey,
    TensorWork,
    float_survey,
    launch_bytes,
    launch_int8_ops,
    quantized_survey,
)
from codtdq.models import model_info
from codtdq.models.registry import build_model

BATCH = 4


@dataclass(frozen=True)
class Device:
    """Peaks from the vendor's data sheet, dense; launch: seconds between small kernels."""

    name: str
    bandwidth: float  # bytes/s
    fp32: float  # operations/s
    fp16: float  # tensor cores, FP32 accumulation
    int8: float  # tensor cores
    launch: float


DEVICES = {
    "rtx-4090": Device("RTX 4090", 1008e9, 82.6e12, 165.2e12, 660.6e12, 5e-6),
    "orin": Device("Jetson AGX Orin 64GB", 204.8e9, 5.3e12, 42.5e12, 85e12, 10e-6),
}
# Runtime efficiency comparison on CFRN: RTX 4090, 384 x 384, batch 4; milliseconds per image
PAPER = {"FP32": 34.02, "W4A4 (COD-TDQ)": 22.61}


def bound(elements: float, size: int, ops: float, device: Device, peak: float) -> float:
    """Seconds of one kernel: bytes or operations, whichever takes longer."""
    return max(elements * size / device.bandwidth, ops / peak)


def rest_seconds(rest: list[TensorWork], device: Device, *, half: bool) -> float:
    """Torch operations: FP32, or FP16 with its products on tensor cores."""
    size, peak = (2, device.fp16) if half else (4, device.fp32)
    return sum(bound(work.elements, size, work.flops, device, peak) for work in rest)


def kernel_seconds(launches: list[Launch], device: Device) -> float:
    """Triton launches, those without a matrix product by their bytes alone."""
    return sum(
        bound(launch_bytes(launch), 1, launch_int8_ops(launch), device, device.int8)
        for launch in launches
    )


@dataclass(frozen=True)
class Estimate:
    label: str
    kernels: int
    bound_ms: float  # per image
    launch_ms: float  # per image, if every kernel waits for its launch

    @property
    def total_ms(self) -> float:
        """Whichever is longer: a device that waits for launches does not work meanwhile."""
        return max(self.bound_ms, self.launch_ms)


def estimates(plain: Survey, quantized: Survey, device: Device) -> list[Estimate]:
    """FP32, FP16 and W4A4 of one network on one device."""
    count = len(plain.rest)
    started = [launch for launches in quantized.launches.values() for launch in launches]
    seconds = {
        "FP32": (count, rest_seconds(plain.rest, device, half=False)),
        "FP16": (count, rest_seconds(plain.rest, device, half=True)),
        "W4A4 (COD-TDQ)": (
            len(started) + len(quantized.rest),
            kernel_seconds(started, device) + rest_seconds(quantized.rest, device, half=False),
        ),
    }
    batch = plain.batch
    return [
        Estimate(label, kernels, 1e3 * bound / batch, 1e3 * kernels * device.launch / batch)
        for label, (kernels, bound) in seconds.items()
    ]


def layer_rows(quantized: Survey, device: Device, macs: dict[str, int]) -> list[list[str]]:
    """One line per operator: work, bytes and the three bounds in microseconds per batch."""
    rows = []
    for name, launches in quantized.launches.items():
        product = launches[-1].arguments
        outputs = product.get("outputs", product.get("channels"))
        operations = 2 * macs.get(name, 0) * quantized.batch
        tokens_in = product["codes"].shape[0] if "codes" in product else product["rows"]
        weights = operations / 2 / product["rows"]
        inputs = outputs if "packed" not in product else weights / outputs / product.get("taps", 1)
        elements = tokens_in * inputs + product["rows"] * outputs + weights
        ours = sum(launch_bytes(launch) for launch in launches)
        rows.append(
            [
                name,
                f"{product['rows']}x{outputs}",
                f"{operations / 1e9:.2f}",
                f"{4 * elements / 2**20:.2f}",
                f"{ours / 2**20:.2f}",
                f"{1e6 * bound(elements, 4, operations, device, device.fp32):.1f}",
                f"{1e6 * bound(elements, 2, operations, device, device.fp16):.1f}",
                f"{1e6 * kernel_seconds(launches, device):.1f}",
            ]
        )
    return rows


def measured(paper: dict[str, float], label: str) -> list[str]:
    """The paper's milliseconds and speed-up, where it has them."""
    if label not in paper:
        return ["-", "-"]
    return [f"{paper[label]:.2f}", f"{paper['FP32'] / paper[label]:.2f}x"]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def compared(paper: dict[str, float], found: list[Estimate]) -> list[str]:
    """What the estimate says about the paper's figures, and what it does not."""
    if not paper:
        return []
    times = paper["FP32"] / found[0].total_ms
    return [
        f"The paper's FP32 network takes {times:.1f} times its estimate here, so what it measured "
        "was not limited by bandwidth or arithmetic alone: only the order of the two speed-ups "
        "can be compared. By the bytes, four bits gain little on this device, because what lies "
        "between the operators stays FP32 and a 4090 has FP32 arithmetic to spare; FP16 would gain "
        "more.",
        "",
    ]


def sheet(
    name: str,
    device: Device,
    plain: Survey,
    quantized: Survey,
    macs: dict[str, int],
    total_macs: int,
) -> str:
    called = [place for place in quantized.operators if place in macs]
    taken = [place for place in called if place in quantized.launches]
    share = 100 * sum(macs[place] for place in taken) / total_macs
    lines = [
        f"# {name} on {device.name}: an estimate",
        "",
        "Made by `python benchmarks/roofline.py` from the kernel launches and torch operations of "
        f"one forward pass (batch {BATCH}, {plain.size}x{plain.size}). **Nothing here was measured "
        "on a GPU**, except the column that says so.",
        "",
        f"Device: {device.bandwidth / 1e9:g} GB/s, {device.fp32 / 1e12:g} TFLOPS FP32, "
        f"{device.fp16 / 1e12:g} TFLOPS FP16, {device.int8 / 1e12:g} TOPS INT8 (dense), "
        f"{1e6 * device.launch:g} us from one launch to the next in eager mode.",
        "",
        f"Coverage of the Triton kernels: {len(taken)} of the {len(called)} quantized operators "
        f"that a forward pass calls ({100 * len(taken) / len(called):.2f} %), {share:.2f} % of all "
        f"multiply-accumulates ({total_macs / 1e9:.2f} G per image); the rest is attention and "
        "what the plan leaves in float. The paper reports 69.73 % of CFRN's quantized operators "
        "for its own path.",
        "",
        "## Whole network",
        "",
    ]
    paper = PAPER if (name, device.name) == ("cfrn", "RTX 4090") else {}
    found = estimates(plain, quantized, device)
    base = found[0].total_ms
    header = [
        "",
        "kernels",
        "roofline ms/img",
        "launches ms/img",
        "estimate ms/img",
        "speed-up",
        "paper, measured ms/img",
        "speed-up",
    ]
    lines += table(
        header,
        [
            [
                e.label,
                str(e.kernels),
                f"{e.bound_ms:.2f}",
                f"{e.launch_ms:.2f}",
                f"{e.total_ms:.2f}",
                f"{base / e.total_ms:.2f}x",
                *measured(paper, e.label),
            ]
            for e in found
        ],
    )
    lines += [
        "",
        "The estimate is the longer of the two columns before it: the sum of all kernels at "
        "their roofline, or their number times the launch distance. Real kernels stay below their "
        "roofline and real networks wait for launches and for each other, so measured times are "
        "longer. Tensors count as read and written once, from memory; caches would make it less. "
        "W4A4 is the path as built: inputs and outputs of every operator in FP32, codes in int8, "
        "weights in nibbles, channels padded to slabs of 32, norms in FP32. Fused attention "
        "(`scaled_dot_product_attention`) counts as one kernel on every line.",
        "",
        *compared(paper, found),
        "## Operators",
        "",
        "Per batch; bounds in microseconds.",
        "",
    ]
    header = ["operator", "outputs", "Gop", "MiB FP32", "MiB W4A4", "FP32", "FP16", "W4A4"]
    return "\n".join(lines + table(header, layer_rows(quantized, device, macs))) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write roofline estimates.")
    parser.add_argument("--models", nargs="+", default=["cfrn", "escnet"])
    parser.add_argument("--out", type=Path, default=Path("results/roofline"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    import torch

    for name in args.models:
        plain, quantized = float_survey(name, BATCH), quantized_survey(name, BATCH)
        size = model_info(name).input_size
        image = torch.zeros(1, 3, size, size, device="meta")
        work = count_work(build_model(name, empty=True).to("meta"), image)
        for key, device in DEVICES.items():
            text = sheet(name, device, plain, quantized, work.operators, work.total)
            path = args.out / f"{name}-{key}.md"
            temporary = path.with_suffix(".tmp")
            temporary.write_text(text)
            temporary.rename(path)
            print(path)


if __name__ == "__main__":
    main()
