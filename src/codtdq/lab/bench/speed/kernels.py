"""Single operators: the activation quantizer, Linear and dense convolutions, native against torch.

Every operator is quantized as in a whole network under `cod-tdq-per-tensor-conv` and run through
the backend: the time of a native operator includes the quantization of its input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.api import preset, quantize, quantize_activation
from codtdq.engine import use_backend
from codtdq.engine.cpu import library
from codtdq.engine.cpu.carry import carry_groups
from codtdq.engine.cpu.operators import quant_spec
from codtdq.errors import ConfigError
from codtdq.lab.bench.speed.machine import require_engine
from codtdq.lab.bench.speed.timing import (
    Timing,
    cpu_speedup,
    fixed_threads,
    geometric_mean,
    interleaved,
    speedup,
)
from codtdq.models.cfrn import SpatialGatingUnit
from codtdq.numerics import ActivationSpec
from codtdq.numerics.affine import EPS, encode, to_codes
from codtdq.planning import QuantConfig
from codtdq.progress import Progress

KINDS = ("quantizer-max", "quantizer", "quantizer-reference", "linear", "conv")
PRESET = "cod-tdq-per-tensor-conv"  # a range per channel has no dense kernel
MAXIMA = "dstg-only"
GROUP = 32

# tokens, channels: MLP inputs of Swin-B stages 1 and 3
QUANTIZER_SHAPES = ((9216, 128), (9216, 512), (576, 512))
# tokens, inputs, outputs: qkv, fc1, fc2 of the four stages of Swin-B at 384 x 384, then fc1 of the
# four stages of PVTv2-B5 at 416 x 416
LINEAR_SHAPES = (
    (9216, 128, 384),
    (9216, 128, 512),
    (9216, 512, 128),
    (2304, 256, 768),
    (2304, 256, 1024),
    (2304, 1024, 256),
    (576, 512, 1536),
    (576, 512, 2048),
    (576, 2048, 512),
    (144, 1024, 3072),
    (144, 1024, 4096),
    (144, 4096, 1024),
    (10816, 64, 512),
    (2704, 128, 1024),
    (676, 320, 1280),
    (169, 512, 2048),
)
# channels, side: the edge-enhancing convolutions of CFRN at 384 x 384
CONV_SHAPES = ((128, 96), (256, 48), (512, 24), (1024, 12))
CONV_DILATIONS = (1, *(dilation for _strip, dilation in SpatialGatingUnit.branches))
LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Case:
    """One operator at one shape: what to time, by name.

    baselines and natives hold one candidate per memory layout; the faster of each side counts.
    """

    kind: str
    name: str
    baselines: dict[str, Callable[[], object]]
    natives: dict[str, Callable[[], object]]
    values: int  # of the input


class _Alone(nn.Module):
    """An operator on its own, in the middle of a network as far as its role goes."""

    def __init__(self, operator: nn.Module) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: Tensor) -> Tensor:
        """Return what the operator gives."""
        return self.operator(x)


def run_kernels(
    *,
    kinds: Sequence[str] = KINDS,
    threads: Sequence[int] = (1,),
    seconds: float = 2.0,
    limit: int | None = None,
) -> dict[str, Any]:
    """Time the operators; returns rows and, per kind and thread count, geometric means.

    seconds: for each case. limit: at most so many cases per kind.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--only is {kind!r}; accepted: {', '.join(KINDS)}")
    require_engine()
    rows: list[dict[str, Any]] = []
    with Progress("kernels") as bar, torch.inference_mode():
        for kind in kinds:
            for case in _cases(kind, limit):
                for count in threads:
                    with fixed_threads(count):
                        timings = interleaved(
                            {**_tagged("fp32", case.baselines), **_tagged("int4", case.natives)},
                            seconds=seconds,
                        )
                    rows.append(_row(case, count, timings))
                    bar.step(note=case.name)
    return {"rows": rows, "means": _means(rows), "preset": PRESET, "group": GROUP}


def _cases(kind: str, limit: int | None) -> Iterator[Case]:
    """Cases one at a time: the weights of all shapes together would fill the memory."""
    makers = {
        "quantizer-max": _quantizers,
        "quantizer": _quantizers,
        "quantizer-reference": _quantizers,
        "linear": _linears,
        "conv": _convolutions,
    }
    for index, case in enumerate(case for case in makers[kind]() if case.kind == kind):
        if limit is not None and index >= limit:
            return
        yield case


def _quantizers() -> Iterator[Case]:
    """Tokens as a product needs them, carriers and units: of DSTG alone, and of DSTG + DCRP.

    Against the formulas in eager torch, operation by operator, and against this project's own
    reference, which avoids the slow ones of these.
    """
    for kind, config in (("quantizer-max", preset(MAXIMA)), ("quantizer", preset(PRESET))):
        spec = ActivationSpec(**config.activation_fields("linear", "linear"))
        settings = (spec.bits, GROUP, spec.literal, False, None, spec.tau, spec.zero_ratio)
        for tokens, channels in QUANTIZER_SHAPES:
            x = _random(tokens, channels)
            native: dict[str, Callable[[], object]] = {
                "-": partial(carry_groups, x, quant_spec(*settings))
            }
            name = f"{tokens}x{channels} g{GROUP}"
            yield Case(kind, name, {"formulas": partial(_formulas, x, spec)}, native, x.numel())
            if kind == "quantizer":
                reference: dict[str, Callable[[], object]] = {
                    "eager": partial(_by_torch, x, config)
                }
                yield Case("quantizer-reference", name, reference, native, x.numel())


def _formulas(x: Tensor, spec: ActivationSpec) -> tuple[Tensor, Tensor]:
    """Codes and steps of tokens x [T, C], written down as the paper has it (Eq. dcrp)."""
    groups = x.unflatten(-1, (-1, GROUP))
    size, highest = groups.abs(), 2 ** (spec.bits - 1) - 1
    bounds = [size.amax(-1)]
    if spec.tau is not None:
        bounds.append(groups.std(-1, correction=0) * (spec.tau * highest))
    if spec.zero_ratio is not None:
        rank = math.ceil(spec.zero_ratio * GROUP)
        bounds.append(size.kthvalue(rank, -1).values * (2 * highest))
    radius = torch.stack(bounds).amin(0).clamp(min=EPS).unsqueeze(-1)
    step = radius / highest
    return to_codes(encode(groups, radius, step, spec.bits)), step


def _by_torch(x: Tensor, config: QuantConfig) -> object:
    with library.disabled():
        return quantize_activation(x, config)


def _linears() -> Iterator[Case]:
    for tokens, inputs, outputs in LINEAR_SHAPES:
        x = _random(tokens, inputs)
        network = _Alone(nn.Linear(inputs, outputs)).eval()
        native = _native(network, None)
        yield Case(
            "linear",
            f"{tokens}x{inputs}x{outputs}",
            {"-": partial(network, x)},
            {"-": partial(native, x)},
            x.numel(),
        )


def _convolutions() -> Iterator[Case]:
    for channels, side in CONV_SHAPES:
        for dilation in CONV_DILATIONS:
            conv = nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation)
            network = _Alone(conv).eval()
            native = _native(network, "cfrn")
            x = _random(1, channels, side, side)
            baselines: dict[str, Callable[[], object]] = {}
            natives: dict[str, Callable[[], object]] = {}
            for layout, memory_format in LAYOUTS.items():
                maps = x.contiguous(memory_format=memory_format)
                twin = _Alone(nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation))
                twin.load_state_dict(network.state_dict())
                twin.to(memory_format=memory_format)  # type: ignore[call-overload]
                baselines[layout] = partial(twin, maps)
                natives[layout] = partial(native, maps)
            name = f"{channels}@{side}x{side} 3x3 d{dilation}"
            yield Case("conv", name, baselines, natives, x.numel())


def _native(network: nn.Module, model: str | None) -> nn.Module:
    """The operator on the engine; `model` is a network whose activation modes apply."""
    quantized = quantize(network, preset(PRESET, model=model), backend="reference")
    record = use_backend(quantized, "cpu")
    if record.fallbacks:
        raise ConfigError(f"the engine does not take the operator: {record.fallbacks}")
    return quantized


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _tagged(
    tag: str, candidates: dict[str, Callable[[], object]]
) -> dict[str, Callable[[], object]]:
    return {f"{tag} {name}": run for name, run in candidates.items()}


def _row(case: Case, threads: int, timings: dict[str, Timing]) -> dict[str, Any]:
    """Return the faster layout of each side, and everything that was measured."""
    best = {}
    for tag, candidates in (("fp32", case.baselines), ("int4", case.natives)):
        best[tag] = min(
            (f"{tag} {name}" for name in candidates), key=lambda key: timings[key].wall.median
        )
    baseline, native = timings[best["fp32"]], timings[best["int4"]]
    return {
        "kind": case.kind,
        "name": case.name,
        "values": case.values,
        "threads": threads,
        "fp32": baseline.to_dict() | {"layout": best["fp32"].split()[1]},
        "int4": native.to_dict() | {"layout": best["int4"].split()[1]},
        "speedup": speedup(baseline, native).to_dict(),
        "cpu_speedup": cpu_speedup(baseline, native),
        "all": {name: timing.to_dict() for name, timing in timings.items()},
    }


def _means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the geometric means over the shapes of a kind."""
    cells = dict.fromkeys((row["kind"], row["threads"]) for row in rows)
    means = []
    for kind, threads in cells:
        chosen = [row for row in rows if (row["kind"], row["threads"]) == (kind, threads)]
        means.append(
            {
                "kind": kind,
                "threads": threads,
                "shapes": len(chosen),
                "speedup": geometric_mean([row["speedup"]["median"] for row in chosen]),
                "cpu_speedup": geometric_mean([row["cpu_speedup"] for row in chosen]),
                "slowest": min(row["speedup"]["median"] for row in chosen),
            }
        )
    return means
