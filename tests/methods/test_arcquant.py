"""ARCQuant: the augmented product, the order, S; and NVFP4 operators."""

import pytest
import torch
import torch.nn.functional as F

import codtdq
from codtdq.methods import apply_method
from codtdq.methods.rivals.arcquant import channel_order, residual_channels
from codtdq.methods.rivals.fp4_operators import BlockInteger, Fp4Input, Fp4Weight
from codtdq.numerics.nvfp4 import fake_nvfp4, tensor_scale
from codtdq.operators import quant_operators
from small_nets import images, small_net


def seeded(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def sqnr(x, y):
    return float(10 * torch.log10(x.square().sum() / (x - y).square().sum()))


def outlier_tokens(channels=72):
    """Tokens with loud channels that are scattered over all blocks."""
    tokens = seeded(2, 10, channels)
    tokens[..., ::9] *= 30
    return tokens


def augmented(tokens, weight, order, residual):
    """[Q(X) | Q(R)] @ [Q(W) | Q(W_o)]^T, written out; Q(W_o) is quantized by itself."""
    x, w = tokens[..., order], weight[:, order]
    t = tensor_scale(x.abs().amax((1, 2), keepdim=True))
    q = fake_nvfp4(x, t)
    r = fake_nvfp4((x - q)[..., -residual:], t)
    tw = tensor_scale(w.abs().amax().reshape(1))
    columns = torch.cat([fake_nvfp4(w, tw), fake_nvfp4(w[:, -residual:], tw)], 1)
    return torch.cat([q, r], -1) @ columns.T


@pytest.mark.parametrize("channels", [64, 72, 33])  # whole blocks, a short first block
def test_one_product_equals_the_augmented_one(channels):
    tokens, weight = outlier_tokens(channels), seeded(20, channels, seed=1)
    order = channel_order(tokens.abs().amax((0, 1)))
    x_hat = Fp4Input(16, order=order)(tokens)
    got = F.linear(x_hat, Fp4Weight.quantize(weight, order).dequantize())
    expected = augmented(tokens, weight, order, 16)
    assert torch.allclose(got, expected, atol=1e-4 * float(expected.abs().max()))
    plain = F.linear(Fp4Input()(tokens), Fp4Weight.quantize(weight).dequantize())
    y = F.linear(tokens, weight)
    assert sqnr(y, got) > sqnr(y, plain) + 1


def test_residual_gives_outliers_a_second_digit():
    tokens = outlier_tokens()
    order = channel_order(tokens.abs().amax((0, 1)))
    loud, quiet = order[-16:], order[:-16]
    plain, twice = Fp4Input(0, order=order)(tokens), Fp4Input(16, order=order)(tokens)
    assert torch.equal(plain[..., quiet], twice[..., quiet])
    assert (
        sqnr(tokens[..., loud], twice[..., loud]) > sqnr(tokens[..., loud], plain[..., loud]) + 10
    )


def test_order_puts_outliers_last_whatever_their_sign():
    assert channel_order(torch.tensor([1.0, -2.0, 0.5]).abs()).tolist() == [2, 0, 1]


def test_number_of_residual_channels():
    rows = torch.full((5, 128), 0.1)
    rows[:, :20] = -1.0  # 20 of 128 entries above an eighth of the row's magnitude, all negative
    assert residual_channels(rows, 0.125, 0.5) == 32
    rows[:, :16] = 1.0
    rows[:, 16:20] = 0.1
    assert residual_channels(rows, 0.125, 0.5) == 16
    assert residual_channels(torch.ones(5, 128), 0.125, 0.5) == 64
    assert residual_channels(torch.ones(5, 72), 0.125, 0.5) == 32
    assert residual_channels(torch.ones(5, 12), 0.125, 0.5) == 0


@pytest.mark.parametrize("shape", [(8, 64), (8, 40, 3, 3), (8, 3, 7, 7), (48, 1, 3, 3), (6, 32, 3)])
def test_weight_store_keeps_layout_and_size(shape):
    weight = seeded(*shape) * torch.linspace(0.1, 3, shape[0]).view(-1, *[1] * (len(shape) - 1))
    order = torch.randperm(shape[1], generator=torch.Generator().manual_seed(1))
    store = Fp4Weight.quantize(weight, order)
    assert store.dequantize().shape == weight.shape
    assert sqnr(weight, store.dequantize()) > 15
    again = Fp4Weight(**{k: v for k, v in store.record().items() if k != "kind"})
    for name, buffer in store.named_buffers():
        again._buffers[name] = buffer
    assert torch.equal(again.dequantize(), store.dequantize())


def test_weight_blocks_run_along_channels_of_one_tap():
    weight = torch.ones(1, 32, 1, 2)
    weight[0, 5, 0, 1] = 1000.0  # drowns its block of 16 channels at that tap only
    got = Fp4Weight.quantize(weight).dequantize()
    assert torch.equal(got[0, 0:5, 0, 1], torch.zeros(5))
    assert torch.allclose(got[0, 16:, 0, 1], torch.ones(16), rtol=0.1)
    assert torch.allclose(got[0, :, 0, 0], torch.ones(32), rtol=0.1)


def test_effective_bits():
    assert Fp4Weight.quantize(seeded(64, 64)).bits() == 4.5 + 32 / 64**2
    assert Fp4Input().bits(64) == 4.5
    assert Fp4Input(32).bits(64) == 4.5 * 96 / 64
    assert BlockInteger(8).bits(32) == 10


@pytest.mark.parametrize("name", ["arcquant", "nvfp4"])
def test_method_round_trip_and_batch_invariance(name, tmp_path):
    net, x = small_net(), images(3)
    model = apply_method(net, name, [images(4, seed=1)])
    y = model(x)
    assert torch.allclose(model(x[1:2]), y[1:2], atol=1e-4)
    again = codtdq.load(codtdq.save(model, tmp_path / "m"), model=small_net())
    assert torch.equal(again(x), y)
    kinds = {op.input_scheme.kind for op in quant_operators(model).values()}
    assert kinds == {"nvfp4", "static-uniform"}  # the image keeps its 8 bits
    off = apply_method(net, name, [x], changes={"weight_bits": None, "act_bits": None})
    assert torch.allclose(off(x), net(x), atol=1e-5)
    eight = apply_method(net, name, [x], changes={"weight_bits": 8, "act_bits": 8})
    assert sqnr(net(x), eight(x)) > 20


def test_residual_channels_lower_the_error_of_the_network():
    net, x, calibration = small_net(), images(8), [images(8, seed=1)]
    y = net(x)
    arc = apply_method(net, "arcquant", calibration, changes={"weight_bits": None})
    plain = apply_method(net, "nvfp4", calibration, changes={"weight_bits": None})
    assert sqnr(y, arc(x)) > sqnr(y, plain(x)) + 0.5
    assert max(arc.quant_record.notes["residual_share"].values()) <= 0.5
