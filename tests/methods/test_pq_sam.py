"""PQ-SAM: groups, the transform, tuning and its resumption."""

import copy

import pytest
import torch
import torch.nn.functional as F

import codtdq
from codtdq.errors import CheckpointError
from codtdq.methods import apply_method
from codtdq.methods.rivals import pq_sam_tuning
from codtdq.methods.rivals.gadt import GroupedTransform, clamp_outliers, cluster_channels
from codtdq.methods.rivals.pq_sam import clipped_grid
from codtdq.numerics.affine import fake_shifted, grid_of
from codtdq.operators import quant_operators
from small_nets import images, small_net

FIT = {"outlier": 10.0, "quantile": 0.25, "max_groups": 16}
QUICK = {"fast_steps": 7, "fast_rate": 1e-2}


def uneven_rows(rows=600, channels=40, seed=0):
    """Rows whose channels differ in mean and spread by orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-1, 1, channels)
    shift = torch.randn(channels, generator=generator) * 3 * scale
    return torch.randn(rows, channels, generator=generator) * scale + shift


@torch.no_grad()
def sqnr(x, y):
    return float(10 * torch.log10(x.square().sum() / (x - y).square().sum()))


@pytest.mark.parametrize("max_groups", [1, 4, 16, 255])
@pytest.mark.parametrize("quantile", [0.1, 0.25])
def test_every_channel_is_in_exactly_one_group(max_groups, quantile):
    groups = cluster_channels(uneven_rows(), quantile, max_groups)
    assert 1 <= len(groups) <= max_groups
    assert sorted(torch.cat(groups).tolist()) == list(range(40))
    assert all(len(group) for group in groups)


def test_inner_channels_are_grouped_before_outlying_ones():
    quiet, loud = torch.randn(500, 6) * 0.1, torch.randn(500, 2) * 100
    groups = cluster_channels(torch.cat([quiet, loud], 1), 0.25, 16)
    first = set(groups[0].tolist())
    assert first <= set(range(6)) and not {6, 7} & first


def test_outliers_are_clamped_by_the_quartiles():
    rows = torch.arange(101.0).reshape(-1, 1)
    rows[100] = 1e6  # Q1 = 25, Q3 = 75
    assert float(clamp_outliers(rows, 2.0).max()) == 75 + 2 * 50
    sparse = torch.zeros(100, 1)
    sparse[0] = 5.0  # quartiles coincide: no measure, nothing is cut
    assert torch.equal(clamp_outliers(sparse, 2.0), sparse)


def test_transform_in_float_leaves_the_layer_output():
    rows = uneven_rows()
    scheme = GroupedTransform.fit(rows, 4, **FIT)
    assert len(scheme.shift) > 1
    weight, bias = torch.randn(8, 40), torch.randn(8)
    y = F.linear(rows, weight, bias)
    assert torch.allclose(scheme.restore(scheme.transform(rows)), rows, rtol=1e-5, atol=1e-5)
    # the deployed form: the scale in the weight, the shift in the bias
    group = scheme.group.long()
    scale, shift = scheme.scale[group], scheme.shift[group]
    folded = F.linear(scheme.transform(rows), weight * scale, bias + weight @ shift)
    assert torch.allclose(folded, y, rtol=1e-5, atol=1e-5 * float(y.abs().max()))


def test_groups_beat_one_grid_and_the_grid_beats_the_plain_range():
    rows = uneven_rows()
    one = GroupedTransform.fit(rows, 4, **{**FIT, "max_groups": 1})
    many = GroupedTransform.fit(rows, 4, **FIT)
    assert sqnr(rows, many(rows)) > sqnr(rows, one(rows)) + 1
    plain = fake_shifted(rows, *grid_of(rows.amin(), rows.amax(), 4, False), 0, 15)
    assert sqnr(rows, one(rows)) >= sqnr(rows, plain)


def test_one_grid_of_sixteen_levels_in_the_transformed_domain():
    rows = uneven_rows()
    scheme = GroupedTransform.fit(rows, 4, **FIT)
    codes = scheme.transform(scheme(rows)) / scheme.step + scheme.zero
    assert torch.allclose(codes, codes.round(), atol=1e-2)
    assert codes.min() > -0.1 and codes.max() < 15.1


def test_dead_channels_do_not_divide_by_zero():
    rows = torch.cat([torch.zeros(200, 20), torch.rand(200, 12)], 1)
    assert GroupedTransform.fit(rows, 4, **FIT)(rows).isfinite().all()
    assert (
        GroupedTransform.fit(torch.zeros(200, 4), 4, **FIT)(torch.zeros(1, 2, 4)).abs().max() < 1e-6
    )


def test_padding_of_a_convolution_stays_zero():
    """With a shift the transform is undone before the operator pads."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1), torch.nn.Conv2d(4, 3, 3, padding=1)).eval()
    x = torch.randn(2, 4, 6, 6) + 5.0
    model = apply_method(net, "pq-sam-init", [x], changes={"act_bits": 8, "weight_bits": None})
    conv = quant_operators(model)["1"]
    assert conv.input_scheme.shift.abs().max() > 0.1
    inside = net[0](x)
    assert sqnr(net[1](inside)[..., 0, :], conv(inside)[..., 0, :]) > 25  # the border row


def test_weight_grid_is_at_least_as_good_as_the_range():
    rows = torch.randn(16, 200).pow(3)
    step, zero = clipped_grid(rows, 4)
    plain = grid_of(rows.amin(1, keepdim=True), rows.amax(1, keepdim=True), 4, False)
    error = (fake_shifted(rows, step, zero, 0, 15) - rows).square().sum(1)
    assert (error <= (fake_shifted(rows, *plain, 0, 15) - rows).square().sum(1)).all()
    assert (error < (fake_shifted(rows, *plain, 0, 15) - rows).square().sum(1)).any()


def test_tuning_lowers_the_loss_on_images_it_did_not_see():
    net, x = small_net(), images(8, seed=9)
    calibration = [images(16, seed=1)]
    start = apply_method(net, "pq-sam-init", calibration)
    slowly = {"fast_steps": 40, "fast_rate": 2e-3}  # a larger rate may end worse on two images
    tuned = apply_method(net, "pq-sam", calibration, changes=slowly)
    assert tuned.quant_record.notes["fitted_values_per_operator"] == 1 << 16
    notes = tuned.quant_record.notes["tuning"]
    assert notes["kept"] == "tuned" and notes["loss_after"] < notes["loss_before"]
    assert tuned.quant_record.steps == 40
    y = net(x)
    assert sqnr(y, tuned(x)) > sqnr(y, start(x))
    moved = zip(quant_operators(start).values(), quant_operators(tuned).values())
    for before, after in moved:  # all four sets of values are learned, everywhere
        for name in ("step", "shift", "scale"):
            pair = (getattr(m.input_scheme, name) for m in (before, after))
            assert not torch.equal(*pair)
        assert not torch.equal(before.weight_scheme.step, after.weight_scheme.step)
        assert torch.equal(before.weight_scheme.zero, after.weight_scheme.zero)


def test_worse_result_is_not_kept():
    net, x = small_net(), images(4)
    calibration = [images(8, seed=1)]
    start = apply_method(net, "pq-sam-init", calibration)
    wild = apply_method(net, "pq-sam", calibration, changes={"fast_steps": 3, "fast_rate": 5.0})
    assert wild.quant_record.notes["tuning"]["kept"] == "start"
    assert torch.equal(wild(x), start(x))


def test_interrupted_run_ends_with_the_same_bits(tmp_path, monkeypatch):
    net, x, calibration = small_net(), images(2), [images(8, seed=1)]
    whole = apply_method(net, "pq-sam", calibration, changes=QUICK)
    monkeypatch.setattr(pq_sam_tuning, "SAVE_EVERY", 3)
    step = pq_sam_tuning.OutputTuner._step

    def stop_in_step_five(self, optimizer, index, train):
        if index == 5:
            raise KeyboardInterrupt
        step(self, optimizer, index, train)

    monkeypatch.setattr(pq_sam_tuning.OutputTuner, "_step", stop_in_step_five)
    with pytest.raises(KeyboardInterrupt):
        apply_method(net, "pq-sam", calibration, changes=QUICK, state_dir=tmp_path)
    monkeypatch.setattr(pq_sam_tuning.OutputTuner, "_step", step)
    resumed = apply_method(net, "pq-sam", calibration, changes=QUICK, state_dir=tmp_path)
    assert resumed.quant_record.notes["tuning"]["resumed_at"] == 3
    assert torch.equal(resumed(x), whole(x))
    other = apply_method(net, "pq-sam", calibration, changes=QUICK, seed=1, state_dir=tmp_path)
    assert other.quant_record.notes["tuning"]["resumed_at"] == 0  # not the state of this job
    (tmp_path / pq_sam_tuning.STATE_FILE).write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="delete it"):
        apply_method(net, "pq-sam", calibration, changes=QUICK, state_dir=tmp_path)


def test_steps_of_one_image_ask_the_float_network_once_for_each(monkeypatch):
    net, asked = small_net(), []
    answer = pq_sam_tuning.OutputTuner._taught

    def counted(self, batch):
        asked.append(batch)
        return answer(self, batch)

    monkeypatch.setattr(pq_sam_tuning.OutputTuner, "_taught", counted)
    settings = {"fast_steps": 9, "fast_batch": 1, "fast_rate": 1e-2}
    kept = apply_method(net, "pq-sam", [images(4)], changes=settings)
    assert len(asked) == 3 + 2 * 1  # three to learn from, one to judge by, before and after
    monkeypatch.setattr(
        pq_sam_tuning.OutputTuner, "_taught_once", lambda self, _, image: answer(self, image)
    )
    again = apply_method(net, "pq-sam", [images(4)], changes=settings)
    for (name, value), other in zip(kept.state_dict().items(), again.state_dict().values()):
        assert torch.equal(value, other), name


def test_method_round_trip_batch_invariance_and_float_model(tmp_path):
    net, x = small_net(), images(3)
    before = copy.deepcopy(net.state_dict())
    model = apply_method(net, "pq-sam", [images(8, seed=1)], changes={"fast_steps": 2})
    y = model(x)
    assert not y.requires_grad
    assert torch.allclose(model(x[1:2]), y[1:2], atol=1e-5)
    again = codtdq.load(codtdq.save(model, tmp_path / "m"), model=small_net())
    assert torch.equal(again(x), y)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    groups = model.quant_record.notes["groups"]
    assert set(groups) == set(quant_operators(model)) and max(groups.values()) <= 16


def test_widths():
    net, x, calibration = small_net(), images(4), [images(8, seed=1)]
    y = net(x)
    none = {"weight_bits": None, "act_bits": None}
    assert torch.allclose(apply_method(net, "pq-sam", calibration, changes=none)(x), y, atol=1e-5)
    eight = {"weight_bits": 8, "act_bits": 8, "fast_steps": 2}
    assert sqnr(y, apply_method(net, "pq-sam", calibration, changes=eight)(x)) > 20
    weights = {"act_bits": None, "fast_steps": 2}
    assert sqnr(y, apply_method(net, "pq-sam", calibration, changes=weights)(x)) > 10
