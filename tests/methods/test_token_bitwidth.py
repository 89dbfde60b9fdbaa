"""Token bit-width: more bits for wide rows, the target in the mean, a shift behind GELU."""

import pytest
import torch

import codtdq
from codtdq.errors import ConfigError
from codtdq.methods import apply_method
from codtdq.methods.rivals.token_bitwidth import (
    TokenBits,
    constant_shift_rows,
    realised_bits,
    shifted_rows,
    widths_around,
)
from codtdq.operators import quant_operators
from codtdq.schemes.inputs import DynamicToken
from small_nets import images, small_net


def calibration(count=16, seed=0):
    return [images(1, seed + number) for number in range(count)]


def quantized(method="token-bitwidth", count=16, **changes):
    return apply_method(small_net(), method, calibration(count), changes=changes)


def uneven_rows(count=500, channels=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp(torch.randn(count, 1, generator=generator))
    return scale * torch.randn(count, channels, generator=generator)


def sqnr(reference, found):
    return float(10 * torch.log10(reference.square().sum() / (found - reference).square().sum()))


def test_a_row_takes_the_fewest_bits_whose_step_is_good_enough():
    quantizer = TokenBits((3, 4, 5, 6), 4.0, tau=torch.tensor([1.0]))
    width = torch.tensor([0.0, 7.0, 7.5, 15.0, 31.0, 63.0, 500.0])
    rows = torch.stack([torch.zeros(7), width], dim=1)
    assert quantizer.token_bits(rows).tolist() == [3, 3, 4, 4, 5, 6, 6]
    assert quantizer.count(rows) == (28, 6)  # a constant row is not counted
    for row, bits in zip(rows, quantizer.token_bits(rows).tolist()):
        assert torch.equal(
            quantizer(row[None])[0], DynamicToken(bits, symmetric=False)(row[None])[0]
        )


@pytest.mark.parametrize("target", [3, 4, 5, 6])
def test_fitted_rows_take_the_target_in_the_mean(target):
    rows = uneven_rows()
    quantizer = TokenBits.fitted(rows, target, widths_around(target))
    taken = quantizer.token_bits(rows).float()
    assert target - 0.02 <= float(taken.mean()) <= target
    assert taken.unique().numel() >= 3  # and not the same for all
    assert quantizer.mean_bits == pytest.approx(float(taken.mean()), abs=1e-6)


def test_padding_does_not_enter_the_fit():
    rows = uneven_rows()
    padded = torch.cat([rows, torch.zeros(400, 32), torch.full((100, 32), 0.3)])
    alone, together = (TokenBits.fitted(r, 4, (3, 4, 5, 6)) for r in (rows, padded))
    assert torch.equal(alone.tau, together.tau)
    constant = TokenBits.fitted(torch.zeros(5, 32), 4, (3, 4, 5, 6))
    assert torch.equal(constant(rows), DynamicToken(4, symmetric=False)(rows))


def test_uneven_rows_gain_over_four_bits_for_all():
    rows = uneven_rows()
    quantizer = TokenBits.fitted(rows, 4, (3, 4, 5, 6))
    assert sqnr(rows, quantizer(rows)) > sqnr(rows, DynamicToken(4, symmetric=False)(rows)) + 2


def test_widths():
    assert widths_around(4) == (3, 4, 5, 6)
    assert widths_around(8) == (7, 8) and widths_around(2) == (2, 3, 4)
    rows = uneven_rows()
    assert TokenBits.fitted(rows, 8, (7, 8)).token_bits(rows).unique().tolist() == [8]
    assert TokenBits.fitted(rows, 2, (2, 3, 4)).token_bits(rows).unique().tolist() == [2]


def test_shifted_rows_lie_on_two_grids():
    rows = torch.nn.functional.gelu(2 * uneven_rows())
    x_hat = shifted_rows(rows, 4, 3)
    step = rows.amax(1, keepdim=True) / 7
    up, down = x_hat / step, x_hat / (step / 8)
    assert torch.allclose(up[rows >= 0], up[rows >= 0].round(), atol=1e-4)
    assert torch.allclose(down[rows < 0], down[rows < 0].round(), atol=1e-4)
    assert float(down.min()) >= -8 - 1e-4 and float(up.max()) <= 7 + 1e-4
    symmetric = shifted_rows(rows, 4, 0)
    assert sqnr(rows.clamp(max=0), x_hat.clamp(max=0)) > sqnr(
        rows.clamp(max=0), symmetric.clamp(max=0)
    )


def test_constant_shift_spans_the_floor_of_gelu():
    row = torch.tensor([[-0.17, 0.0, 1.33, -0.1]])
    assert torch.allclose(constant_shift_rows(row, 4), torch.tensor([[-0.17, 0.03, 1.33, -0.07]]))


def test_the_better_reading_is_taken_behind_gelu_and_only_there():
    operators = quant_operators(quantized())
    behind = operators["mlp.fc2"].input_scheme
    assert behind.reading in ("shift", "constant")
    assert operators["attn.qkv"].input_scheme.reading == "plain"
    assert operators["mix"].input_scheme.kind == "static-uniform"
    rows = torch.nn.functional.gelu(uneven_rows())

    def error(**changes):
        quantizer = quant_operators(quantized(**changes))["mlp.fc2"].input_scheme
        return float((quantizer(rows) - rows).square().sum())

    assert error() == min(error(post_gelu="shift"), error(post_gelu="constant"))


def test_one_width_is_per_token():
    x = images(3, 7)
    with torch.no_grad():
        same = quantized(candidates=(4,), post_gelu="plain")(x)
        assert torch.equal(same, quantized("per-token")(x))


def test_other_images_take_the_target_too():
    model = quantized(count=48)
    found = realised_bits(model, calibration(32, seed=100))
    assert set(found) == {"attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"}
    assert sum(found.values()) / len(found) == pytest.approx(4.0, abs=0.05)
    notes = model.quant_record.notes["token_bits"]
    assert all(3.97 <= layer["mean_bits"] <= 4.0 for layer in notes.values())
    assert all(operator.listener is None for operator in quant_operators(model).values())


def test_bits_count_scale_index_and_zero_point():
    assert TokenBits((3, 4, 5, 6), 4.0).bits(64) == pytest.approx(4 + (32 + 2 + 4) / 64)
    assert TokenBits((3, 4, 5, 6), 4.0, "shift", 2).bits(64) == pytest.approx(4 + 34 / 64)
    assert TokenBits((4,), 4.0).bits(64) == DynamicToken(4, symmetric=False).bits(64)


def test_batch_mates_do_not_matter():
    model, batch = quantized(), images(5, 9)
    batch[2] *= 4
    with torch.no_grad():
        alone = torch.cat([model(image[None]) for image in batch])
        assert torch.allclose(model(batch), alone, atol=1e-5)


def test_off_is_float_and_eight_bits_are_close():
    x = images(3, 7)
    with torch.no_grad():
        reference = small_net()(x)
        assert torch.equal(quantized(act_bits=None, weight_bits=None)(x), reference)
        assert sqnr(reference, quantized(act_bits=8, weight_bits=8)(x)) >= 20
        assert sqnr(reference, quantized()(x)) >= 5


def test_it_survives_a_file(tmp_path):
    model, x = quantized(), images(2, 5)
    codtdq.save(model, tmp_path / "m")
    again = codtdq.load(tmp_path / "m", model=small_net(1))
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
    assert again.quant_record.bits == model.quant_record.bits


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="post_gelu is 'up'"):
        quantized(post_gelu="up")
    with pytest.raises(ConfigError, match="candidates are"):
        quantized(candidates=(1, 4))
