"""IGQ-ViT: channels choose among the layer's ranges anew for every image."""

import pytest
import torch
from torch import nn

import codtdq
from codtdq.errors import ConfigError
from codtdq.evaluation.provenance import model_hash
from codtdq.methods import apply_method, method_info
from codtdq.methods.rivals.igq_vit import InstanceGroups, cluster, refine
from codtdq.numerics.affine import code_limits, fake_shifted, grid_of
from codtdq.operators import quant_operators
from small_nets import images, small_net


def calibration(count=4):
    return [images(1, seed) for seed in range(count)]


def quantized(method="igq-vit", **changes):
    return apply_method(small_net(), method, calibration(), changes=changes)


def sqnr(reference, found):
    return float(10 * torch.log10(reference.square().sum() / (found - reference).square().sum()))


def many_ranges(count=6, positions=40, channels=64, seed=0):
    """Images whose channels have scales over two orders of magnitude, and offsets."""
    generator = torch.Generator().manual_seed(seed)
    scale = 10 ** (2 * torch.rand(channels, generator=generator) - 1)
    shift = torch.randn(channels, generator=generator)
    x = torch.randn(count, positions, channels, generator=generator)
    return x * scale + shift


def ranges_for(x, groups, seed=0):
    points = torch.stack([x.amin(1).flatten(), x.amax(1).flatten()], dim=-1)
    return cluster(points, groups, torch.Generator().manual_seed(seed))


def test_a_channel_takes_the_range_nearest_to_its_extremes():
    quantizer = InstanceGroups(4, low=torch.tensor([-1.0, -10.0]), high=torch.tensor([1.0, 10.0]))
    x = torch.tensor([[[0.9, -8.0], [-0.8, 9.0]], [[5.9, 0.1], [-6.0, 0.0]]])
    assert quantizer.assign(x).tolist() == [[0, 1], [1, 0]]  # per image, not per batch
    for image in range(2):
        for channel, group in enumerate(quantizer.assign(x)[image]):
            values = x[image, :, channel]
            step, zero = grid_of(quantizer.low[group], quantizer.high[group], 4, False)
            expected = fake_shifted(values, step, zero, *code_limits(4, False))
            assert torch.equal(quantizer(x)[image, :, channel], expected)


def test_one_group_is_one_static_range_of_mean_extremes():
    x = many_ranges()
    centre = ranges_for(x, 1)
    assert torch.allclose(centre[0, 0], x.amin(1).mean()) and len(centre) == 1
    assert torch.allclose(centre[0, 1], x.amax(1).mean())
    quantizer = InstanceGroups(4, low=centre[:, 0], high=centre[:, 1])
    step, zero = grid_of(centre[0, 0], centre[0, 1], 4, False)
    assert torch.equal(quantizer(x), fake_shifted(x, step, zero, *code_limits(4, False)))


def test_more_groups_lower_the_calibration_error():
    errors = []
    for groups in (1, 2, 4, 8, 16):
        total = 0.0
        for seed in range(4):
            x = many_ranges(seed=seed)
            centres = ranges_for(x, groups, seed)
            x_hat = InstanceGroups(4, low=centres[:, 0], high=centres[:, 1])(x)
            total += float((x_hat - x).square().mean())
        errors.append(total)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.2 * errors[0]


def test_a_centre_without_points_moves_to_where_it_is_needed():
    points = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0]])
    lost = refine(points, torch.tensor([[2.0, 2.0], [1e6, 1e6]]))
    expected = torch.tensor([[0.05, 0.0], [5.05, 5.0]])
    assert torch.allclose(lost[lost[:, 0].argsort()], expected)


def test_no_more_centres_than_distinct_points():
    points = torch.tensor([[0.0, 1.0]] * 5 + [[2.0, 3.0]] * 5)
    centres = cluster(points, 8, torch.Generator().manual_seed(0))
    assert sorted(centres.tolist()) == [[0.0, 1.0], [2.0, 3.0]]


def test_centres_are_the_means_of_their_points_and_repeat_with_the_seed():
    x = many_ranges()
    points = torch.stack([x.amin(1).flatten(), x.amax(1).flatten()], dim=-1)
    centres = cluster(points, 6, torch.Generator().manual_seed(3), steps=200)
    group = torch.cdist(points, centres).argmin(1)
    for index in range(6):
        assert torch.allclose(points[group == index].mean(0), centres[index], atol=1e-4)
    assert torch.equal(centres, cluster(points, 6, torch.Generator().manual_seed(3), steps=200))


def test_batch_mates_do_not_matter():
    model, batch = quantized(), images(5, 9)
    batch[2] *= 4  # its ranges must not leak
    with torch.no_grad():
        alone = torch.cat([model(image[None]) for image in batch])
        assert torch.allclose(model(batch), alone, atol=1e-5)


def test_an_input_with_one_position_has_one_static_range():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    model = apply_method(net.eval(), "igq-vit", calibration())
    assert quant_operators(model)["3"].input_scheme.kind == "static-uniform"


def test_a_single_group_can_be_evaluated_and_hashed():
    model = quantized(groups=1)
    quantizer = quant_operators(model)["mlp.fc2"].input_scheme
    assert quantizer.low.stride() == (1,) and quantizer.bits(192) == 4
    model_hash(model)


def test_groups_and_bits_are_counted():
    model = quantized("igq-vit-12")
    operators = quant_operators(model)
    assert operators["mlp.fc2"].input_scheme.low.numel() == 12
    assert quant_operators(quantized())["mlp.fc2"].input_scheme.low.numel() == 8
    # 16 tokens share the choice of a channel: 4 bits for one of 12 groups
    assert operators["mlp.fc2"].input_scheme.bits(192) == pytest.approx(4 + 4 / 16)
    assert operators["mix"].input_scheme.low.numel() == 12  # convolutions too
    assert operators["stem"].input_scheme.kind == "static-uniform"  # but not on the image
    assert operators["stem"].input_scheme.bits(3) == 8
    assert method_info("igq-vit").ranges == "dynamic"


def test_off_is_float_and_eight_bits_are_close():
    x = images(3, 7)
    with torch.no_grad():
        reference = small_net()(x)
        assert torch.equal(quantized(act_bits=None, weight_bits=None)(x), reference)
        # mean extremes clip at any width, and few positions make extremes vary: 20 dB are not in
        # reach of 8 groups here, but more groups clip less
        eight = sqnr(reference, quantized(act_bits=8, weight_bits=8)(x))
        assert eight >= 15 and sqnr(reference, quantized()(x)) >= 10
        assert sqnr(reference, quantized(act_bits=8, weight_bits=8, groups=64)(x)) > eight + 1


def test_it_survives_a_file(tmp_path):
    model, x = quantized(), images(2, 5)
    codtdq.save(model, tmp_path / "m")
    again = codtdq.load(tmp_path / "m", model=small_net(1))
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
    assert again.quant_record.bits == model.quant_record.bits


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="groups is 0"):
        quantized(groups=0)
