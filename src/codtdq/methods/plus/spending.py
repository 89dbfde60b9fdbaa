"""Spare bits go where the mask feels them: some operators get wider codes, within a budget.

How much of a rounding error reaches the mask differs by orders of magnitude between operators. One
backward pass per image tells it to first order: with g = d log p(mask) / dx, independent errors e
move log p by sum (g e)^2 (`likelihood`; masks are drawn from the prediction, never given).

Both budgets are mean bits per value as effective bits count them, over the elements of the weights:

- activations: a bit more quarters the squared error. One bit at a time goes to the operator that
  gains most for it, up to 6 (7 would leave no room for multipliers).
- weights: half as large groups, or a byte per weight, as engines execute them. What helps most per
  bit comes first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codtdq.errors import CalibrationError
from codtdq.methods.likelihood import mask_logits_of, sampled_label_loss
from codtdq.methods.plus.rounding import nearest_codes, search_scales
from codtdq.methods.plus.scoring import MakeInput
from codtdq.methods.workbench import Workbench, count_used
from codtdq.numerics.packing import NIBBLE_BITS
from codtdq.operators.observing import run_model
from codtdq.operators.tokens import input_tokens
from codtdq.planning.plan import Site
from codtdq.progress import track
from codtdq.schemes.transforms import Transform
from codtdq.schemes.weight_groups import group_index, weight_rows

IMAGES = 8  # whose masks are asked
MOST_ACT_BITS = 6
STORED_BITS = 8  # of a weight that does not fit a nibble
LEAST_GROUP = 16  # of weights: what engines multiply in nibbles
GROUP_BITS = 5  # of a group's multiplier: its size and its sign


@dataclasses.dataclass
class Felt:
    """What the mask feels of an operator, summed over images."""

    inputs: float  # of its rounded inputs: the sum of (g e)^2
    weight: Tensor  # g^2 of its transformed weight, as rows [O, K]


class Option(NamedTuple):
    """A format of a weight: what the mask feels of it, and what it costs beyond the first."""

    fields: dict[str, int]  # of a layer's overrides
    felt: float
    cost: float  # bits of the whole weight


def spend_bits(
    bench: Workbench,
    make_input: MakeInput,
    transforms: Mapping[str, Transform],
    act_bits: float,
    weight_bits: float,
) -> dict[str, dict[str, int]]:
    """Widen sites of the bench and of its plan; returns what changed by operator.

    act_bits, weight_bits: mean bits that may be spent beyond those of the config.
    """
    felt = felt_errors(bench, make_input, transforms)
    count = {site.name: float(site.parameters) for site in bench.sites}
    total = sum(count.values())
    options = {
        site.name: weight_options(site, transforms.get(site.name, Transform()), felt[site.name])
        for site in bench.sites
        if weight_bits and site.weight_bits is not None and site.weight_bits <= NIBBLE_BITS
    }
    widths = {
        site.name: site.act_bits
        for site in bench.sites
        if site.act_bits is not None and site.role != "first"
    }
    errors = {name: felt[name].inputs for name in widths}
    found = bought(options, weight_bits * total)
    for name, bits in poured(errors, widths, count, act_bits * total).items():
        found.setdefault(name, {})["act_bits"] = bits
    _widen(bench, found)
    return found


def felt_errors(
    bench: Workbench, make_input: MakeInput, transforms: Mapping[str, Transform]
) -> dict[str, Felt]:
    """What the mask feels of every operator: a forward and a backward pass per image.

    The network is float still; make_input and transforms are what its operators are about to get.
    """
    felt = {
        site.name: Felt(0.0, torch.zeros_like(weight_rows(site.float_weight)))
        for site in bench.sites
    }
    labels = bench.generator("labels")
    images = track(bench.batches(IMAGES), "asking the mask", count_used(bench.calibration, IMAGES))
    with _gradients(bench), _seen_inputs(bench, make_input, transforms, felt):
        for batch in images:
            logits = mask_logits_of(bench.model, run_model(bench.model, batch))
            loss = sampled_label_loss(logits, labels)
            if not loss.requires_grad:
                raise CalibrationError(
                    "the mask has no gradient with respect to any operator; spare bits need one: "
                    "set spare_act_bits and spare_weight_bits to 0"
                )
            loss.backward()
            for site in bench.sites:
                gradient = site.module.weight.grad
                if gradient is not None:
                    used = dataclasses.replace(
                        transforms.get(site.name, Transform()), shift=None
                    )  # of W' = (W scale)[order] R: as tokens, a shift apart
                    felt[site.name].weight += _rows(gradient, used.tokens).square()
                    site.module.weight.grad = None
    return felt


@contextmanager
def _gradients(bench: Workbench) -> Iterator[None]:
    """Gradients of the weights of all sites, while the block runs."""
    weights = [site.module.weight for site in bench.sites]
    for weight in weights:
        weight.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        for weight in weights:
            weight.requires_grad_(False)
            weight.grad = None


@contextmanager
def _seen_inputs(
    bench: Workbench,
    make_input: MakeInput,
    transforms: Mapping[str, Transform],
    felt: dict[str, Felt],
) -> Iterator[None]:
    """Add to `felt` what the mask feels of rounded inputs, whenever a gradient passes them."""

    def hook_of(site: Site) -> Callable[..., tuple[Any, Any] | None]:
        transform = transforms.get(site.name, Transform())
        scheme = make_input(site)

        def hook(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
            x = args[0] if args else kwargs["input"]
            if scheme is None or site.role == "first":
                return None
            # a tensor of its own: others may read x, and only what passes this operator counts
            x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_(True)
            with torch.no_grad():
                wanted = transform.tokens(input_tokens(module, x.detach()))
                error = scheme(wanted) - wanted

            def back(gradient: Tensor) -> None:
                tokens = transform.columns(input_tokens(module, gradient))
                felt[site.name].inputs += float((tokens * error).square().sum())

            x.register_hook(back)
            return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "input": x})

        return hook

    handles = [
        site.module.register_forward_pre_hook(hook_of(site), with_kwargs=True)
        for site in bench.sites
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def weight_options(site: Site, transform: Transform, felt: Felt) -> list[Option]:
    """The format of a site's weight, and the dearer ones that its engine executes."""
    assert site.weight is not None
    weight = _rows(site.float_weight.float(), transform.columns)
    group = site.weight.group_size or 0
    tried = [(site.weight.bits, group), (STORED_BITS, 0)]
    if group and group // 2 >= LEAST_GROUP and group // 2 % LEAST_GROUP == 0:
        tried.insert(1, (site.weight.bits, group // 2))
    found: list[Option] = []
    for bits, size in tried:
        index = group_index(torch.Size(site.shape), size)
        scales, _ = search_scales(
            weight[None],
            torch.ones(1, weight.shape[1]),
            index,
            bits,
            factors=(1.0,),
            whole=site.weight.scales == "integer",
        )
        error = nearest_codes(weight[None], scales, index, bits).values[0] - weight
        side = GROUP_BITS * (int(index[-1]) + 1) / len(index) if size else 0.0
        cost = (bits + side) * weight.numel()
        fields = {"weight_bits": bits} if bits == STORED_BITS else {"weight_group_size": size}
        found.append(Option(fields, float((felt.weight * error.square()).sum()), cost))
    return [option._replace(cost=option.cost - found[0].cost) for option in found]


def _rows(weight: Tensor, turn: Callable[[Tensor], Tensor]) -> Tensor:
    """A weight (or its gradient) [O, C, *taps] with its channels turned, as rows [O, K]."""
    return weight_rows(turn(weight.movedim(1, -1)).movedim(-1, 1))


def bought(options: Mapping[str, list[Option]], budget: float) -> dict[str, dict[str, int]]:
    """Fields of the operators that get another format: what helps most per bit comes first."""
    held = dict.fromkeys(options, 0)
    while True:
        best: tuple[float, str, int] | None = None
        for name, choices in options.items():
            now = choices[held[name]]
            for place in range(held[name] + 1, len(choices)):
                cost = choices[place].cost - now.cost
                gain = now.felt - choices[place].felt
                if 0 < cost <= budget and gain > 0 and (best is None or gain / cost > best[0]):
                    best = gain / cost, name, place
        if best is None:
            return {n: dict(options[n][place].fields) for n, place in held.items() if place}
        _, name, place = best
        budget -= options[name][place].cost - options[name][held[name]].cost
        held[name] = place


def poured(
    errors: Mapping[str, float],
    widths: Mapping[str, int],
    count: Mapping[str, float],
    budget: float,
) -> dict[str, int]:
    """Widths that differ from the given ones: bit after bit to whom it helps most per value."""
    left, found = dict(errors), dict(widths)
    while True:
        able = [n for n in left if found[n] < MOST_ACT_BITS and left[n] > 0 and count[n] <= budget]
        if not able:
            return {name: bits for name, bits in found.items() if bits != widths[name]}
        name = max(able, key=lambda n: left[n] / count[n])
        found[name] += 1
        left[name] /= 4
        budget -= count[name]


def _widen(bench: Workbench, widths: Mapping[str, Mapping[str, int]]) -> None:
    """Give sites their new widths, on the bench and in its plan."""
    assert bench.plan is not None

    def widened(site: Site) -> Site:
        for field, value in widths.get(site.name, {}).items():
            side, _, part = field.partition("_")
            spec = "weight" if side == "weight" else "activation"
            changed = dataclasses.replace(getattr(site, spec), **{part: value})
            site = dataclasses.replace(site, **{spec: changed})
        return site

    bench.sites[:] = [widened(site) for site in bench.sites]
    sites = tuple(widened(site) for site in bench.plan.sites)
    bench.plan = dataclasses.replace(bench.plan, sites=sites)
