"""Layers chosen for pictures, and token groups before and after the projection."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from codtdq.lab.diagnosis.before_after import GROUP_TOKENS, group_sample
from codtdq.lab.diagnosis.gallery import GallerySample
from codtdq.lab.diagnosis.groups import Observation
from codtdq.lab.diagnosis.layer_ranking import bounded_layer, rank_layers, structure
from codtdq.lab.diagnosis.record import GroupSample, LayerSample
from codtdq.lab.diagnosis.tokens import TokenMap, TokenMaps
from codtdq.numerics import ActivationSpec, quantize


def layer(name, role, side, channels=32):
    return SimpleNamespace(
        name=name, role=role, grid=(side, side), channels=channels, boundary=object()
    )


def grids(sides):
    """Maps of square grids, one per operator."""
    table, maps = [], {}
    for name, side in sides.items():
        start = len(table)
        edges = np.linspace(0, 1, side + 1)
        table += [
            (edges[r], edges[c], edges[r + 1], edges[c + 1])
            for r in range(side)
            for c in range(side)
        ]
        boxes = torch.arange(start, len(table))[:, None]
        maps[name] = [TokenMap(boxes=boxes, grid=(side, side))]
    return TokenMaps(maps, torch.tensor(table, dtype=torch.float64))


def kept(**by_method):
    shares = {
        m: {n: np.asarray(v).ravel().astype(np.uint8) for n, v in found.items()}
        for m, found in by_method.items()
    }
    return GallerySample(sample=None, band=np.zeros((40, 40), bool), zeroed=shares)


def halves(side, left, right):
    picture = np.full((side, side), left)
    picture[:, side // 2 :] = right
    return picture


def choose(layers, first, second, count=4):
    records = [SimpleNamespace(layers=layers)]
    maps = grids({one.name: one.grid[0] for one in layers})
    return rank_layers(records, [kept(a=first, b=second)], maps, count)


def test_structure_and_difference_beat_total_loss_and_noise():
    noise = np.random.default_rng(0).integers(0, 2, (20, 20)) * 255
    layers = [layer(name, "conv", 20) for name in ("gone", "noise", "same", "told")]
    first = {
        "gone": halves(20, 255, 255),
        "noise": noise,
        "same": halves(20, 0, 200),
        "told": halves(20, 40, 200),
    }
    second = {
        "gone": halves(20, 255, 254),
        "noise": noise // 8,
        "same": halves(20, 0, 200),
        "told": halves(20, 0, 60),
    }
    assert choose(layers, first, second) == ["told"]


def test_one_layer_per_role_then_other_grids():
    layers = [
        layer("fine", "mlp", 40),
        layer("weaker", "mlp", 40),
        layer("half", "mlp", 20),
        layer("coarse", "mlp", 5),
        layer("thin", "mlp", 40, channels=1),
        layer("only", "attention", 5),
    ]
    high = {"fine": 220, "weaker": 120, "half": 180, "coarse": 255, "thin": 255, "only": 60}
    first = {one.name: halves(one.grid[0], 0, high[one.name]) for one in layers}
    second = {one.name: halves(one.grid[0], 0, 10) for one in layers}
    assert choose(layers, first, second) == ["fine", "only", "half"]
    assert choose(layers, first, second, count=1) == ["fine"]


def test_structure_takes_noise_off_and_leaves_padding_out():
    place = np.repeat([3, 7], 200)
    noise = np.tile([-0.1, 0.1], 200)
    assert structure(np.where(place == 3, 0.2, 0.6) + noise, place) == pytest.approx(0.2, abs=1e-3)
    assert structure(0.5 + noise, place) == 0.0
    assert structure(np.array([0.0, 1.0, 9.0]), np.array([0, 1, -1])) == 0.5
    assert structure(np.ones(2), np.array([-1, -1])) == 0.0


@pytest.mark.parametrize("change", [{}, {"projection": "guarded"}, {"percentile": 0.9}])
def test_groups_before_and_after_are_the_quantizers_own(change):
    torch.manual_seed(0)
    spec = ActivationSpec(group_size=8, **change)
    x = torch.randn(2 * GROUP_TOKENS + 4, 16) * torch.logspace(-2, 1, 16)
    x[0] = 1.0  # constant: no eta
    result = quantize(x, spec)
    labels = (torch.arange(len(x)) % 2 == 0).to(torch.int8)
    found = group_sample(Observation(x, result.x_hat, result, labels))
    spaced = slice(3, None, 3)  # every third token, without the constant one
    free = quantize(x, dataclasses.replace(spec, tau=None, zero_ratio=None))
    for name, one in (("before", free), ("after", result)):
        eta, rho0 = one.eta[spaced].flatten(), one.zero_mass[spaced].flatten()
        assert torch.equal(torch.from_numpy(getattr(found, f"eta_{name}")), eta)
        assert torch.equal(torch.from_numpy(getattr(found, f"rho0_{name}")), rho0)
    assert (found.tau, found.zr) == (1.0, 0.2)
    assert found.boundary.tolist() == labels[spaced].repeat_interleave(2).tolist()
    if not change:
        assert found.rho0_before.mean() > 0.2 and found.rho0_after.max() <= 0.2


def test_groups_without_bounds_have_no_before():
    x = torch.randn(8, 16)
    for spec in (ActivationSpec(tau=None, zero_ratio=None), ActivationSpec(mode="per_tensor")):
        result = quantize(x, spec)
        assert group_sample(Observation(x, result.x_hat, result)) is None
    assert group_sample(Observation(x, x)) is None


def test_the_layer_whose_bounds_act_most():
    def sample(name, eta):
        labels = (np.arange(80) % 2).astype(np.int8)
        etas = np.where(labels == 0, eta, 9).astype(np.float32)
        none, rho0 = np.zeros(80, np.float32), (labels * 0.1).astype(np.float32)
        groups = GroupSample(1.0, 0.2, etas, etas.clip(max=1), rho0, rho0, labels)
        return LayerSample("ours", name, none, none, none.astype(np.int64), labels, groups)

    assert bounded_layer([sample("a", 0.5), sample("b", 2.0), sample("c", 0.9)]) == "b"
    assert bounded_layer([dataclasses.replace(sample("a", 2.0), groups=None)]) is None
