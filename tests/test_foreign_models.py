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


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=64, n_layer=2, n_head=2, attn_implementation="eager"
    )
    return transformers.GPT2Model(config).eval()


def test_conv1d_of_gpt2_is_the_linear_it_is(tmp_path):
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    model, ids = gpt2(), torch.arange(12).reshape(1, 12)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = codtdq.plan(model, "cod-tdq")
    assert len(plan.quantized) == 8 and {site.type for site in plan.quantized} == {"Linear"}
    assert plan.site("h.0.attn.c_attn").shape == (192, 64)  # outputs first, as of a Linear
    quantized = codtdq.quantize(model, "cod-tdq")
    wide = codtdq.quantize(model, codtdq.config("w8a8"))
    calibrated = codtdq.quantize(model, "cod-tdq-plus", calibration=[{"input_ids": ids}])
    with torch.no_grad():
        wanted = first_tensor(model(ids))
        assert torch.allclose(first_tensor(wide(ids)), wanted, atol=0.15)
        assert not torch.equal(first_tensor(quantized(ids)), wanted)
        assert torch.isfinite(first_tensor(calibrated(ids))).all()
        codtdq.save(quantized, tmp_path / "q")
        again = codtdq.load(tmp_path / "q", model=model)
        assert torch.equal(first_tensor(again(ids)), first_tensor(quantized(ids)))
    assert sum(type(m) is Conv1D for m in model.modules()) == 8  # the old one is untouched
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_plan_says_what_share_stays_float():
    plan = codtdq.plan(gpt2(), "cod-tdq")
    totals = plan.totals()
    assert 0 < totals["float_bytes"] < totals["packed_bytes"]
    share = totals["float_bytes"] / totals["packed_bytes"]
    expected = f"MiB packed ({share:.1%} of it stays float)"
    assert share > 0.1 and expected in str(plan) and expected in plan._repr_html_()
    assert "h.0.attn.c_attn" in plan._repr_html_()
