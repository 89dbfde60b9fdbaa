"""`codtdq bench latency --backend triton`: the options of a GPU, and its measurement."""

from __future__ import annotations

import argparse
from typing import Any

from codtdq.errors import ConfigError

BACKENDS = ("cpu", "triton")
# what only one of the two backends can be asked for
OF_THE_CPU = (
    "threads",
    "size",
    "seconds",
    "compare",
    "hold",
    "accuracy",
    "dataset",
    "quantized",
    "data_root",
    "calibration",
    "calibration_images",
    "figure",
    "profile",
    "memory",
    "first_mask",
    "processes",
)
OF_A_GPU = ("repeats",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what chooses and what steers the backend."""
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="cpu",
        help="cpu: the native engine (default); triton: a GPU, by default with the "
        "paper's setting: cfrn, batch 4, fp32, w4a4 and cod-tdq",
    )
    parser.add_argument(
        "--repeats", type=int, metavar="N", help="timed passes per network on a GPU (default 50)"
    )


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that the backend would ignore."""
    on_gpu = args.backend == "triton"
    for name in OF_THE_CPU if on_gpu else OF_A_GPU:
        if getattr(args, name):
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} does nothing with --backend {args.backend}; leave it out")
    if args.repeats is not None and args.repeats < 1:
        raise ConfigError(f"--repeats is {args.repeats}; give a whole number, 1 or more")


def require() -> None:
    """Fail where there is no device to measure."""
    from codtdq.lab.bench.speed.gpu import require_gpu

    require_gpu()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Time FP32 and the methods. CFRN without a checkpoint has random weights: time is the same."""
    from codtdq.lab.bench.speed import gpu
    from codtdq.lab.bench.speed.subjects import prepared

    untrained = args.untrained or (args.model is None and args.checkpoint is None)
    with prepared(
        args.model or gpu.MODEL,
        args.methods or gpu.METHODS,
        checkpoint=args.checkpoint,
        untrained=untrained,
        write_fp32=True,
        native=False,
    ) as subjects:
        return gpu.run_gpu_latency(
            subjects, batches=args.batch or [gpu.BATCH], repeats=args.repeats or gpu.REPEATS
        )
