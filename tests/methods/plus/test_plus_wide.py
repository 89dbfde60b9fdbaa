"""Convolutions that cod-tdq-plus fits tap by tap, because their matrix of moments has no room."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import codtdq
from codtdq.methods.plus.layer import LayerSettings
from codtdq.methods.plus.moments import input_rows, output_rows
from codtdq.methods.plus.wide import WIDEST, TapMoments, is_wide


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mixed(*shape: int) -> torch.Tensor:
    """Maps whose channels correlate, so that compensation has something to gain."""
    channels = shape[1]
    mixing = draw(channels, channels // 4, seed=1)
    return torch.einsum("bchw,kc->bkhw", draw(shape[0], channels // 4, *shape[2:]), mixing)


def gathered(weight: torch.Tensor, maps: torch.Tensor) -> tuple[TapMoments, torch.Tensor]:
    module = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1, bias=False)
    module.weight = nn.Parameter(weight, requires_grad=False)
    wanted = output_rows(module, module(maps) + 3.0)
    rows = input_rows(module, maps.flatten(2).transpose(1, 2), maps.shape)
    moments = TapMoments(weight)
    moments.add(rows, wanted)
    return moments, rows[0]


def test_only_wide_convolutions_are_fitted_by_taps():
    assert is_wide((64, 5760, 3, 3), 1) and is_wide((64, 1025, 3, 3), 1)
    assert not is_wide((1024, 1024, 3, 3), 1)  # the widest of CFRN: 9216 columns
    assert not is_wide((64, WIDEST + 1), 1)  # a Linear has no taps
    assert not is_wide((64, 5760, 3, 3), 2)


@pytest.mark.parametrize("group", [32, 0])
def test_codes_land_in_their_places_and_the_bias_meets_the_wanted_mean(group: int):
    weight, maps = draw(8, 48, 3, 3, seed=2), mixed(2, 48, 9, 11)
    moments, rows = gathered(weight, maps)
    found = moments.fit(None, LayerSettings(bits=8, group=group))
    restored = found.store.dequantize()
    assert restored.shape == weight.shape
    # 8 bits with a scale of four significant bits: a few hundredths of the weight's spread
    assert (restored - weight).abs().max() < 0.06 * weight.abs().max()
    flat = restored.movedim(1, -1).flatten(1)
    given = rows.mean(0) @ flat.T + found.bias
    wanted = rows.mean(0) @ weight.movedim(1, -1).flatten(1).T + 3.0
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-3)


def test_compensation_inside_taps_lowers_the_output_error():
    weight, maps = draw(8, 64, 3, 3, seed=2), mixed(4, 64, 12, 12)
    errors = {}
    for compensate in (False, True):
        moments, rows = gathered(weight, maps)
        settings = LayerSettings(bits=4, group=32, compensate=compensate, sweeps=0)
        off = moments.fit(None, settings).store.dequantize() - weight
        errors[compensate] = float((rows @ off.movedim(1, -1).flatten(1).T).var(0).sum())
    assert errors[True] < 0.7 * errors[False]


def test_a_wide_convolution_is_quantized_in_a_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("codtdq.methods.plus.wide.WIDEST", 200)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3, padding=1)
        ).eval()
    images = draw(8, 3, 16, 16)
    quantized = codtdq.quantize(model, "cod-tdq-plus", calibration=[images], backend="reference")
    assert quantized.quant_record.notes["operators"]["2"]["ridge"] is None
    with torch.no_grad():
        exact, found = model(images), quantized(images)
    assert (found - exact).norm() < 0.15 * exact.norm()
