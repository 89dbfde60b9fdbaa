"""Models that this project did not write: HuggingFace transformers with random weights."""

import pytest
import torch
from torch import nn

import codtdq
from small_nets import simulate

transformers = pytest.importorskip("transformers", reason="install codtdq[test]")


def segformer():
    config = transformers.SegformerConfig(
        hidden_sizes=[16, 32, 40, 64],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=32,
        num_labels=1,
        num_attention_heads=[1, 2, 4, 8],
    )
    return transformers.SegformerForSemanticSegmentation(config)


def swin():
    config = transformers.SwinConfig(
        image_size=64, embed_dim=24, depths=[1, 2], num_heads=[2, 4], window_size=4
    )
    return transformers.SwinModel(config)


def vit():
    config = transformers.ViTConfig(
        image_size=64,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
    )
    return transformers.ViTModel(config)


def convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[16, 24], depths=[1, 1], num_stages=2)
    return transformers.ConvNextModel(config)


def first_tensor(output):
    return next(v for v in output.to_tuple() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("build", [segformer, swin, vit, convnext])
def test_it_works_unchanged_on_transformers(build, tmp_path):
    torch.manual_seed(0)
    model = build().eval()
    plan = codtdq.plan(model, "cod-tdq")
    expected = {
        name
        for name, m in model.named_modules()
        if isinstance(m, nn.Linear | nn.Conv2d | nn.Conv1d)
    }
    assert {site.name for site in plan.quantized} == expected
    quantized = simulate(model, "cod-tdq")
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        y = first_tensor(quantized(pixel_values=x))
        assert y.shape == first_tensor(model(pixel_values=x)).shape and y.isfinite().all()
        close = first_tensor(simulate(model, "w8a8")(pixel_values=x))
        exact = first_tensor(model(pixel_values=x))
        assert (close - exact).norm() < 0.2 * exact.norm()
        path = codtdq.save(quantized, tmp_path / "model")
        restored = codtdq.load(path, model=build(), backend="reference")
        assert torch.equal(first_tensor(restored(pixel_values=x)), y)
