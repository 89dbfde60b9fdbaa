from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from codtdq.lab.training import losses


def blob_mask(batch: int = 2, size: int = 48) -> Tensor:
    axis = torch.arange(size) - size / 2
    distance = torch.hypot(axis[:, None] + 3, axis[None, :])
    radii = torch.linspace(8, 14, batch).view(-1, 1, 1)
    return (distance < radii).float().unsqueeze(1)


def certain(mask: Tensor) -> Tensor:
    return (mask * 2 - 1) * 30


def coarse_of(mask: Tensor) -> Tensor:
    return F.avg_pool2d(mask, 6)


def outputs_for(name: str, logits: Tensor, mask: Tensor) -> object:
    if name == "vit-cod":
        return logits, certain(F.max_pool2d(losses.edge_of(mask), 4)), certain(coarse_of(mask))
    if name != "escnet":
        return (logits, F.avg_pool2d(logits, 4))
    return certain(losses.edge_of(mask)), [logits] * 4


@pytest.mark.parametrize("name", sorted(losses.LOSSES))
def test_better_masks_cost_less(name: str) -> None:
    mask = blob_mask()
    loss = losses.LOSSES[name]
    right, half, wrong = (
        float(loss(outputs_for(name, logits, mask), mask, 0.3))
        for logits in (certain(mask), certain(mask) / 30, -certain(mask))
    )
    assert right < half < wrong
    assert math.isfinite(wrong)


@pytest.mark.parametrize("name", sorted(losses.LOSSES))
def test_gradients_reach_every_output_that_counts(name: str) -> None:
    mask = blob_mask()
    logits = torch.zeros_like(mask, requires_grad=True)
    losses.LOSSES[name](outputs_for(name, logits, mask), mask, 0.5).backward()
    assert logits.grad is not None
    assert bool((logits.grad != 0).all())
    # inside the object the loss asks for more, outside for less
    assert bool((logits.grad[mask > 0] < 0).all())
    assert bool((logits.grad[mask == 0] > 0).all())


def test_boundary_weight_matches_square_pooling() -> None:
    """The running-sum form equals the definition with two-dimensional mean pooling."""
    mask = blob_mask(2, 160)
    maps = []
    for side in (13, 21, 25, 11, 9):  # 31, 51, 61, 27, 21 scaled from 384 to 160
        maps.append((F.avg_pool2d(mask, side, 1, side // 2) - mask).abs() + 1e-6)
    stacked = torch.stack(maps)
    power = stacked ** (-4 / 3)
    expected = 1 + 5 * ((power / power.sum(0)) ** 1.75 * stacked).sum(0)
    torch.testing.assert_close(losses.boundary_weight(mask), expected, atol=1e-5, rtol=1e-5)


def test_boundary_weight_is_one_far_from_edges() -> None:
    mask = torch.zeros(1, 1, 96, 96)
    mask[..., 40:56, 40:56] = 1
    weight = losses.boundary_weight(mask)
    assert float(weight[0, 0, 2, 2]) == pytest.approx(1.0, abs=1e-4)
    assert float(weight[0, 0, 40, 48]) > 1.2


def test_uncertainty_grows_with_progress_only_for_undecided_maps() -> None:
    mask = blob_mask()
    vague = torch.zeros_like(mask)
    early, late = (float(losses.cfrn_loss(vague, mask, p)) for p in (0.0, 1.0))
    assert late - early == pytest.approx(1.0)
    decided = certain(mask)
    early, late = (float(losses.cfrn_loss(decided, mask, p)) for p in (0.0, 1.0))
    assert late == pytest.approx(early, abs=1e-6)


def test_escnet_factors_weigh_the_four_masks() -> None:
    mask = blob_mask()
    zeros = [torch.zeros_like(mask)] * 4
    edge = certain(losses.edge_of(mask))
    one = float(losses.bce_iou_loss(zeros[0], mask, 0.0))
    assert float(losses.escnet_loss((edge, zeros), mask, 0.0)) == pytest.approx(3.2 * one, rel=1e-4)


def test_vit_cod_judges_edge_and_coarse_mask_on_their_own_grids() -> None:
    mask = blob_mask()
    logits, edge, coarse = outputs_for("vit-cod", certain(mask), mask)
    best = float(losses.vit_cod_loss((logits, edge, coarse), mask, 0.5))
    no_edge = float(losses.vit_cod_loss((logits, -edge, coarse), mask, 0.5))
    assert no_edge - best == pytest.approx(0.5 * (1 + 30), rel=0.05)  # Dice by 1, BCE by the logit
    assert float(losses.vit_cod_loss((logits, edge, -coarse), mask, 0.5)) > best + 1.0
    half = tuple(each.bfloat16() for each in (logits, edge, coarse))
    assert float(losses.vit_cod_loss(half, mask, 0.5)) == pytest.approx(best, abs=0.01)


def test_vit_cod_asks_for_boundaries_first() -> None:
    """A wrong pixel costs more beside the boundary than far from it."""
    mask = torch.zeros(1, 1, 96, 96)
    mask[..., 30:66, 30:66] = 1
    edge, coarse = torch.zeros(1, 1, 24, 24), torch.zeros(1, 1, 12, 12)
    logits = torch.zeros_like(mask, requires_grad=True)
    losses.vit_cod_loss((logits, edge, coarse), mask, 0.0).backward()
    pull = logits.grad.abs()[0, 0]
    assert pull[48, 31] > 2 * pull[48, 48] and pull[48, 28] > 2 * pull[48, 5]


@pytest.mark.parametrize("name", sorted(losses.LOSSES))
def test_coarse_logits_are_resized_to_the_mask(name: str) -> None:
    mask = blob_mask()
    small = torch.full((2, 1, 12, 12), 0.7)
    full = torch.full_like(mask, 0.7)
    coarse, fine = (outputs_for(name, logits, mask) for logits in (small, full))
    loss = losses.LOSSES[name]
    assert float(loss(coarse, mask, 0.4)) == pytest.approx(float(loss(fine, mask, 0.4)))


def test_edge_of_is_the_rim_of_the_object() -> None:
    mask = torch.zeros(1, 1, 9, 9)
    mask[..., 3:6, 3:6] = 1
    edge = losses.edge_of(mask)
    assert float(edge[0, 0, 4, 4]) == 0  # inside
    assert float(edge.sum()) == 25 - 1  # one pixel out, one pixel in
    assert float(losses.edge_of(torch.ones(1, 1, 5, 5)).sum()) == 0


def test_soft_iou_of_known_overlap() -> None:
    prob, mask = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    prob[..., :2] = 1
    mask[..., 1:3] = 1
    assert float(losses.soft_iou(prob, mask)) == pytest.approx(1 - 4 / 12, abs=1e-5)
    assert float(losses.dice(prob, mask, eps=1e-6)) == pytest.approx(1 - 8 / 16, abs=1e-5)
    weighted = losses.weighted_iou(prob, mask, torch.ones_like(mask))
    assert float(weighted) == pytest.approx(1 - 5 / 13, abs=1e-5)
