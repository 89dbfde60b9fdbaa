"""PQ-SAM: channels in groups with a learned shift and scale, tuned end to end.

Source: Liu et al., "PQ-SAM: Post-training Quantization for Segment Anything Model", ECCV 2024.
There is no official code: this follows second-hand descriptions of the paper, not its text.

Activations: GADT on OHC groups (`gadt`), one static asymmetric grid per tensor with
lambda = 10, alpha = 0.25. Weights: an asymmetric grid per output channel (or group of its values),
the clip of least squared error. Then Adam with a cosine schedule on {step_W, step_X, v, s} for the
distance between the outputs of the quantized and the float network; weights and zero-points stay.
`pq-sam-init` stops before.

Deviations: groups are capped at 16 (OHC bounds their number by nothing); s_g is at least 1 % of
the tensor's own deviation. Both apply to all Linear and Conv operators, not only to an image
encoder. Learned values are relative (step and s as exp(theta) times their start, v in units of s),
so that one rate fits all layers: 6e-3. Budget "fast" takes 80 steps of 2 images, "paper" 10 000 of
1 (100 epochs of 100 images) at 5e-4. Loss: squared error over the square of the float output,
averaged over all tensors that the network returns. Held-out calibration images decide between
start and result. Groups and starting grids of an operator are fitted to 2^16 values of its sampled
calibration rows (`gadt.SAMPLE_VALUES`; in the notes), not to all of its input.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from codtdq.methods.collect import collect_inputs
from codtdq.methods.registry import SECOND_HAND, register_method
from codtdq.methods.rivals.gadt import SAMPLE_VALUES, GroupedTransform
from codtdq.methods.rivals.pq_sam_tuning import OutputTuner, TunedOperator, TuningPlan
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import code_limits, fake_shifted, grid_of
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import Site
from codtdq.schemes.weights import UniformWeight, group_rows

WEIGHT_CLIPS = tuple(1 - 0.05 * k for k in range(13))  # of the range of an output channel


@dataclass(frozen=True, kw_only=True)
class PqSamConfig(QuantConfig):
    """Settings of PQ-SAM."""

    outlier: float = 10.0  # lambda: interquartile ranges beyond which OHC clamps
    quantile: float = 0.25  # alpha: quantiles that decide about a group
    max_groups: int = 16
    tuned: bool = True
    images: int = 100  # calibration images to tune on
    held_out: int = 16  # further ones to judge by; at most an eighth of what there is
    fast_steps: int = 80
    fast_batch: int = 2
    fast_rate: float = 6e-3
    paper_steps: int = 10_000
    paper_batch: int = 1
    paper_rate: float = 5e-4


_DECLARED: dict[str, Any] = {
    "config": PqSamConfig,
    "source": "Liu et al., ECCV 2024",
    "evidence": SECOND_HAND,
    "ranges": "static",
    "granularity": "per tensor, after a shift and a scale of each group of channels",
    "act_bits": "4",
    "weight_bits": "4 + 40/K",
}


@register_method(
    "pq-sam-init",
    settings={"tuned": False},
    title="PQ-SAM (untuned)",
    description="grouped transform and grids as they start, without tuning",
    **_DECLARED,
)
@register_method(
    "pq-sam",
    title="PQ-SAM",
    gradients=True,
    reconstructs=True,
    description="grouped shift and scale, tuned with all steps on the network's outputs",
    **_DECLARED,
)
def pq_sam(bench: Workbench) -> None:
    """Fit every operator on float inputs, install all, then tune all together."""
    config: PqSamConfig = bench.config
    teacher = copy.deepcopy(bench.model)
    seen = [site for site in bench.sites if site.act_bits is not None]
    stats = collect_inputs(bench, seen) if seen else {}
    operators: list[TunedOperator] = []
    groups: dict[str, int] = {}
    for site in bench.sites:
        inputs = None
        if site.act_bits is not None:
            rows = stats[site.name].rows
            pick = torch.randperm(len(rows), generator=bench.generator("fit", site.name))
            inputs = GroupedTransform.fit(
                rows[pick],
                site.act_bits,
                outlier=config.outlier,
                quantile=config.quantile,
                max_groups=config.max_groups,
            )
            groups[site.name] = len(inputs.shift)
        operators.append(_install(bench, site, inputs))
    bench.notes["groups"] = groups
    bench.notes["fitted_values_per_operator"] = SAMPLE_VALUES
    bench.notes["evidence"] = "second-hand description of the paper; no official code exists"
    if config.tuned and any(op.starts for op in operators):
        _tune(bench, teacher, operators)


def _install(bench: Workbench, site: Site, inputs: GroupedTransform | None) -> TunedOperator:
    weight = site.float_weight.clone()
    store = None
    if site.weight_bits is not None:
        group = site.weight_group
        step, zero = clipped_grid(group_rows(weight, group), site.weight_bits)
        store = UniformWeight.quantize(weight, site.weight_bits, step=step, zero=zero, group=group)
    return TunedOperator(bench.install(site, inputs=inputs, weight=store), weight, store)


def _tune(bench: Workbench, teacher: torch.nn.Module, operators: list[TunedOperator]) -> None:
    config: PqSamConfig = bench.config
    fast = (config.fast_steps, config.fast_batch, config.fast_rate)
    paper = (config.paper_steps, config.paper_batch, config.paper_rate)
    steps, batch, rate = {
        "fast": fast,
        "tenth": (paper[0] // 10, paper[1], paper[2] * 10),
        "paper": paper,
        "least": (1, *fast[1:]),
    }[bench.budget]
    plan = TuningPlan(steps, batch, rate, bench.seed)
    batches = _single_images(bench, config.images + config.held_out)
    aside = min(config.held_out, max(1, len(batches) // 8))
    # a single image can only be judged by itself
    train = batches[:-aside] or batches
    tuner = OutputTuner(bench.model, teacher, operators, plan, bench.generator, bench.state_dir)
    result = tuner.tune(train, batches[-aside:])
    for op in operators:
        op.finish()
    bench.steps += plan.steps
    bench.notes["tuning"] = {
        "loss_before": result.start_loss,
        "loss_after": result.tuned_loss,
        "kept": "tuned" if result.improved else "start",
        "resumed_at": result.resumed_at,
        "images": len(train),
        "held_out": aside,
    }


def _single_images(bench: Workbench, count: int) -> list[Any]:
    """Calibration data image by image, at most `count`; what is no tensor stays as it is."""
    found: list[Any] = []
    for batch in bench.batches(count):
        found.extend(batch.split(1) if isinstance(batch, Tensor) else [batch])
    return found


def clipped_grid(rows: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """(step, zero) [R, 1]: of the clipped ranges of each row of [R, K], the least squared error."""
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    step, zero = grid_of(low, high, bits, False)
    best = torch.full_like(step, torch.inf)
    for clip in WEIGHT_CLIPS:
        new_step, new_zero = grid_of(low * clip, high * clip, bits, False)
        hat = fake_shifted(rows, new_step, new_zero, *code_limits(bits, False))
        error = (hat - rows).square().mean(1, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        step = torch.where(better, new_step, step)
        zero = torch.where(better, new_zero, zero)
    return step, zero
