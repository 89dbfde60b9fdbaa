"""The sequence: operators are fitted in running order, each on what the fitted ones give it.

Data stream through both networks side by side; of an operator's data only second moments are kept.
One stream in four is held out: it chooses the ridge, and the errors in the record are its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.memory import release_memory
from codtdq.methods.plus.layer import LayerSettings, fit_layer, set_bias
from codtdq.methods.plus.moments import Moments, input_rows, output_rows
from codtdq.methods.plus.paired_run import PairedRun
from codtdq.methods.plus.state import FittedFiles
from codtdq.methods.plus.wide import TapMoments, is_wide
from codtdq.methods.workbench import Workbench
from codtdq.numerics.acceleration import faster
from codtdq.operators.quantized import QuantOperator, quant_operators
from codtdq.operators.tokens import input_tokens
from codtdq.planning.plan import Site
from codtdq.progress import Progress

STREAM_PIXELS = 8 * 160 * 160  # of the images that run as one batch
ALL_PIXELS = 63 * 256 * 256  # of all images: 28 of 384 x 384 fit 8 GB beside a large network
FEW_PIXELS = 128 * 160 * 160  # of images that always run side by side
FEW_IMAGES = 12  # of larger ones that do
STOP_VALUES = 75_000_000  # of all inputs and outputs of an operator, where more could run
STREAMS = 4  # at least, where there are so many images
HELD_OUT = 4  # one stream in so many
ROWS, ROWS_PER_COLUMN = 8192, 16  # of one operator: at most the larger of both
POOLED = 64  # rows of a stream below which an operator works on pooled vectors
TRIM_EVERY = 8  # operators
WIDE = 2048  # columns K of a weight whose matrices [K, K] count in memory


def fit_in_order(
    bench: Workbench,
    floating: nn.Module,
    settings: LayerSettings,
    images: int,
    files: FittedFiles | None = None,
) -> dict[str, Any]:
    """Quantize the weights of all sites whose width is not None; returns facts by site.

    floating: a copy of the model in float, for the wanted outputs. All sites are installed already,
    with their input quantizers and float weights (transformed).
    """
    sites = {site.name: site for site in bench.sites if site.weight_bits is not None}
    facts: dict[str, Any] = {}
    counts: list[int] = []  # of streams, operator by operator
    for name in list(sites):
        kept = files.restore(name, sites[name].shape) if files is not None else None
        if kept is not None:
            _install(bench, sites.pop(name), kept[0], kept[1])
            facts[name] = kept[2]
            counts.append(int(kept[2]["streams"]))  # to go on as if nothing had happened
    if not sites:
        _release(bench)
        return facts
    batches = stream_batches(bench, images)
    counts.insert(0, least := least_streams(batches))
    with (
        Progress("fitting operators", len(sites)) as bar,
        PairedRun(floating, bench.model, list(sites), batches, counts[-1]) as streams,
    ):
        for number, name in enumerate(streams.stops()):
            wanted = streams_for(sites[name], streams.pairs(name)[0], counts[-1], least)
            wanted = min(wanted, len(batches))
            # those that had to end once do not start again: each time they would run all the way
            counts.append(wanted if counts == sorted(counts) else min(wanted, counts[-1]))
            streams.run(counts[-1])
            streams.advance()
            if _columns(sites[name]) >= WIDE or number % TRIM_EVERY == 0:
                release_memory()  # room for matrices [K, K]
            fact = _fit_site(bench, sites[name], streams.pairs(name), settings)
            facts[name] = fact = {**fact, "streams": counts[-1]}
            if files is not None:
                module = sites[name].module
                assert isinstance(module, QuantOperator)
                files.save(name, module.weight_scheme, module._parameters.get("bias"), fact)
            bar.step(note=name)
    _release(bench)
    return facts


def stream_batches(bench: Workbench, images: int) -> list[Any]:
    """Calibration images joined to the batches of the streams; what is no tensor stays as it is."""
    first = bench.first_batch()
    if not isinstance(first, Tensor):
        return list(bench.batches(images))
    pixels = max(first[0, 0].numel(), 1)
    count = max(1, min(images, ALL_PIXELS // pixels))
    joined = torch.cat(list(bench.batches(count)))
    size = max(1, min(STREAM_PIXELS // pixels, -(-len(joined) // STREAMS)))
    return list(joined.split(size))


def least_streams(batches: list[Any]) -> int:
    """How many streams always run: all where images are small, else those of FEW_IMAGES."""
    first = batches[0]
    if not isinstance(first, Tensor) or len(batches) * first[:, 0].numel() <= FEW_PIXELS:
        return len(batches)
    return min(len(batches), max(STREAMS, FEW_IMAGES // len(first)))


def streams_for(site: Site, pair: tuple[Tensor, Tensor], running: int, least: int) -> int:
    """Lanes for one operator: as many as its rows ask for, as far as there is room.

    None ends for being too much, only for lack of room, and none starts for the sake of a few rows.
    """
    x, y = pair
    rows = y.numel() // site.float_weight.shape[0]
    wanted = 0
    if rows >= POOLED:
        wanted = -(-max(ROWS, ROWS_PER_COLUMN * _columns(site)) // rows)
    room = STOP_VALUES // max(x.numel() + y.numel(), 1)
    return max(least, min(max(wanted, running), room))


def _fit_site(
    bench: Workbench, site: Site, pairs: list[tuple[Tensor, Tensor]], settings: LayerSettings
) -> dict[str, Any]:
    module = site.module
    assert isinstance(module, QuantOperator)
    assert site.weight is not None
    weight = module.weight_scheme.dequantize()
    settings = dataclasses.replace(
        settings, bits=site.weight.bits, group=site.weight.group_size or 0
    )
    groups = int(getattr(module, "groups", 1))
    if bench.graph.calls.get(site.name, 1) > 1:
        # the streams stop at its first call only: what is fitted there may not suit the others
        settings = _unfitted(settings)
    bias = module._parameters.get("bias")
    if is_wide(tuple(weight.shape), groups):
        taps = TapMoments(weight)
        for _, rows, wanted in _sampled(bench, site, pairs):
            taps.add(rows, wanted)
        result = taps.fit(bias, settings)
    else:
        fit, held = gather(bench, site, pairs)
        result = fit_layer(weight, bias, groups, fit, held, settings)
    fact = {"ridge": result.ridge, "float_error": result.float_error, "error": result.error}
    _install(bench, site, result.store, result.bias)
    return fact


def gather(
    bench: Workbench, site: Site, pairs: list[tuple[Tensor, Tensor]]
) -> tuple[Moments, Moments | None]:
    """Moments of a site's data: of the streams to fit, and of those held out (None: too few)."""
    sums: list[Moments] = []
    for stream, rows, wanted in _sampled(bench, site, pairs):
        if not sums:
            origin = rows.mean(1), wanted.mean(1)
            sums = [Moments(*origin), Moments(*origin)]
        sums[stream % HELD_OUT == HELD_OUT - 1].add(rows, wanted)
    fit, held = sums
    return fit, held if held.rows else None


def _sampled(
    bench: Workbench, site: Site, pairs: list[tuple[Tensor, Tensor]]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Rows of every stream, at most an even share of what an operator is fitted on."""
    module = site.module
    assert isinstance(module, QuantOperator)
    share = max(1, max(ROWS, ROWS_PER_COLUMN * _columns(site)) // len(pairs))
    for stream, (x, y) in enumerate(pairs):
        rows, wanted = _rows(module, x, y)
        if rows.shape[1] > share:
            generator = bench.generator("positions", site.name, stream)
            pick = torch.randperm(rows.shape[1], generator=generator)[:share]
            rows, wanted = rows[:, pick], wanted[:, pick]
        yield stream, rows, wanted


def _rows(module: QuantOperator, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of quantized inputs [G, R, K] and of wanted outputs [G, R, O]."""
    x_hat = module.input_scheme(input_tokens(module, x))
    if not isinstance(module, nn.Linear) and x.ndim == len(_taps(module)) + 1:
        x, y = x.unsqueeze(0), y.unsqueeze(0)
    return input_rows(module, x_hat, x.shape), output_rows(module, y)


def _columns(site: Site) -> int:
    return math.prod(site.float_weight.shape[1:])


def _taps(module: nn.Module) -> tuple[int, ...]:
    return tuple(getattr(module, "kernel_size", ()))


def _unfitted(settings: LayerSettings) -> LayerSettings:
    return dataclasses.replace(settings, ridges=(), correct_bias=False)


def _install(bench: Workbench, site: Site, store: Any, bias: Tensor | None) -> None:
    operator = bench.install(site, weight=store)
    set_bias(operator, bias)
    operator.backend = faster("executor", operator)  # the streams go on through it


def _release(bench: Workbench) -> None:
    """Leave who executes the operators to the caller."""
    for operator in quant_operators(bench.model).values():
        operator.backend = operator.executor = None
