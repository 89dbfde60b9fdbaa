"""PairedRun streams and the method as a whole, on a network with every kind of operator."""

import threading

import pytest
import torch
from torch import nn

import codtdq
from codtdq.data import open_dataset
from codtdq.engine import cpu as native
from codtdq.errors import ConfigError
from codtdq.evaluation import CalibrationImages
from codtdq.evaluation.predict import mask_logits
from codtdq.lab.stress import plant_outliers
from codtdq.methods import apply_method, outline
from codtdq.methods.plus import sequence
from codtdq.methods.plus.config import PlusConfig
from codtdq.methods.plus.paired_run import PairedRun
from codtdq.methods.plus.sequence import least_streams, streams_for
from codtdq.methods.registry import QuantConfig
from codtdq.methods.workbench import Workbench
from codtdq.numerics.acceleration import faster, plain
from codtdq.operators import quant_operators
from codtdq.operators.record import effective_bits
from codtdq.schemes.multiplied import MultipliedWeight
from small_nets import images, small_net

BATCHES = [images(4, seed=100 + i) for i in range(4)]
METHOD = "cod-tdq-plus"


def run(model, x):
    with torch.no_grad():
        return model(x)


def quantize(model=None, **changes):
    return apply_method(model or small_net(), METHOD, BATCHES, changes=changes)


def likeness(y, reference):
    """Signal to noise ratio in decibels."""
    noise = (y - reference).square().sum()
    return float(10 * torch.log10((reference - reference.mean()).square().sum() / noise))


@pytest.fixture(scope="module")
def default():
    return quantize()


def test_the_engine_carries_the_streams_and_changes_no_bit(default, monkeypatch):
    used = []
    monkeypatch.setattr(
        sequence, "faster", lambda *args: used.append(found := faster(*args)) or found
    )
    assert_same(quantize(), default)
    expected = native.unavailable_reason() is None
    assert (
        len(used) == len(quant_operators(default)) and any(used) == expected
    )  # one is only simulated
    with plain():
        assert_same(quantize(), default)
    for operator in quant_operators(default).values():
        assert operator.backend is None and operator.executor is None


def assert_same(model, other):
    found, wanted = model.state_dict(), other.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in found)


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        return self.second(torch.relu(self.first(x)))


def test_lanes_stop_together_and_run_once():
    floating, other = Chain(), Chain()
    batches = [torch.randn(2, 4) for _ in range(3)]
    seen = []
    with PairedRun(floating, other, ["first", "second"], batches) as streams:
        for name in streams.stops():
            pairs = streams.pairs(name)
            seen.append(name)
            if name == "first":
                assert all(torch.equal(x, batch) for (x, _), batch in zip(pairs, batches))
                with torch.no_grad():
                    other.first.weight.mul_(2)  # what settling does: the second one must see it
            else:
                for (x, y), batch in zip(pairs, batches):
                    assert torch.equal(x, run(nn.Sequential(other.first, nn.ReLU()), batch))
                    assert torch.equal(y, floating.second(torch.relu(floating.first(batch))))
    assert seen == ["first", "second"]
    assert floating.runs == other.runs == 3
    assert not floating.first._forward_hooks and not other.first._forward_pre_hooks


def test_lanes_that_start_late_run_through_what_is_fitted():
    floating, other = Chain(), Chain()
    batches = [torch.randn(2, 4) for _ in range(4)]
    with PairedRun(floating, other, ["first", "second"], batches) as streams:
        streams.run(1)
        counts = {}
        for name in streams.stops():
            counts[name] = len(streams.pairs(name))
            if name == "first":
                with torch.no_grad():
                    other.first.weight.mul_(2)
            else:
                streams.run(4)
                streams.advance()
                pairs = streams.pairs(name)
                assert len(pairs) == 4
                for (x, y), batch in zip(pairs, batches):
                    assert torch.equal(x, run(nn.Sequential(other.first, nn.ReLU()), batch))
                    assert torch.equal(y, floating.second(torch.relu(floating.first(batch))))
                streams.run(2)
                assert len(streams.pairs(name)) == 2
    assert counts == {"first": 1, "second": 1}
    assert threading.active_count() == 1


def test_lanes_follow_rows_and_room():
    bench = Workbench(nn.Sequential(nn.Conv2d(64, 8, 3)), QuantConfig(), [torch.randn(1, 64, 9, 9)])
    site = bench.sites[0]  # 576 columns: 9216 rows are wanted
    x, y = torch.empty(1, 64, 32, 32), torch.empty(1, 8, 32, 32)
    assert streams_for(site, (x, y), 1, 1) == 9
    assert streams_for(site, (x, y), 20, 1) == 20  # none ends without need
    large = torch.empty(1, 64, 1000, 1000, device="meta")
    assert streams_for(site, (large, torch.empty(1, 8, 1000, 1000, device="meta")), 20, 3) == 3
    assert least_streams([torch.empty(1, 3, 384, 384)] * 28) == 12
    assert least_streams([torch.empty(1, 3, 2000, 2000)] * 2) == 2
    assert least_streams([torch.empty(8, 3, 160, 160)] * 16) == 16


def test_fewer_lanes_where_tensors_are_large(monkeypatch):
    monkeypatch.setattr(sequence, "FEW_PIXELS", 1)
    monkeypatch.setattr(sequence, "FEW_IMAGES", 1)
    monkeypatch.setattr(sequence, "STOP_VALUES", 1)
    monkeypatch.setattr(sequence, "STREAMS", 1)
    seen = []
    gather = sequence.gather
    monkeypatch.setattr(
        sequence, "gather", lambda b, s, pairs: seen.append(len(pairs)) or gather(b, s, pairs)
    )
    model, x = quantize(), images(2, seed=9)
    assert set(seen) == {1} and likeness(run(model, x), run(small_net(), x)) > 10


def test_lanes_that_ended_for_lack_of_room_do_not_start_again(monkeypatch):
    for name in ("FEW_PIXELS", "FEW_IMAGES", "STREAMS", "STREAM_PIXELS", "POOLED", "ROWS"):
        monkeypatch.setattr(sequence, name, 1)
    plans = iter([2, 5, 3, 9, 2, 9, 9, 9])
    monkeypatch.setattr(sequence, "streams_for", lambda *_: next(plans))
    facts = quantize().quant_record.notes["operators"].values()
    assert [fact["streams"] for fact in facts] == [2, 5, 3, 3, 2, 2, 2, 2]


def test_a_failing_model_ends_all_lanes():
    class Broken(Chain):
        def forward(self, x):
            super().forward(x)
            raise ValueError("no mask")

    before = threading.active_count()
    with pytest.raises(ValueError, match="no mask"):
        with PairedRun(Broken(), Chain(), ["first", "second"], [torch.randn(2, 4)] * 2) as streams:
            list(streams.stops())
    assert threading.active_count() == before


def test_bits_are_within_the_budget(default):
    # the small net has 48 channels; real layers are wider, and a float32 per output costs them less
    sims = quant_operators(default)
    assert sims["mlp.fc2"].input_scheme.bits(192) <= 4.6
    for name in ("mlp.fc1", "mlp.fc2"):
        inputs = sims[name].in_features
        groups = -(-inputs // 32)
        # whole bytes of sizes (nibbles) and of signs, and a factor for each output
        beside = 8 * -(-groups // 2) + 8 * -(-groups // 8) + 32
        assert sims[name].weight_scheme.bits() == pytest.approx(4 + beside / inputs), name


def test_the_outline_knows_formats_and_bits_beforehand(default):
    image = torch.zeros_like(BATCHES[0][:1])
    plan, sketch = outline(small_net(), codtdq.config(METHOD), image)
    assert effective_bits(sketch) == default.quant_record.bits
    beforehand, afterwards = plan.totals(), default.quant_record.plan.totals()
    for key in ("buffer_bytes", "packed_bytes"):  # what calibration adds is not known beforehand
        assert beforehand.pop(key) <= afterwards.pop(key)
    assert beforehand == afterwards
    operators = quant_operators(default)
    assert [site.name for site in plan] == list(operators) == list(quant_operators(sketch))
    for site in plan:
        operator = operators[site.name]
        scheme = operator.input_scheme
        scheme = getattr(scheme, "inner", scheme)  # a transform changes no format
        assert site.act_format == scheme.label()
        assert site.weight_format == operator.weight_scheme.label()
        assert site.effective_weight_bits == pytest.approx(operator.weight_scheme.bits())
        assert site.effective_act_bits == pytest.approx(scheme.bits(site.inputs))


def test_formats_that_follow_from_calibration_are_not_sketched():
    plan, sketch = outline(small_net(), codtdq.config("smoothquant"), BATCHES[0][:1])
    assert sketch is None and {site.weight_bits for site in plan} == {4}
    plan, sketch = outline(small_net(), codtdq.config(METHOD))
    assert sketch is None and all(site.weight_format is None for site in plan)


def test_every_operator_gets_the_widths_that_its_plan_says():
    changes = {
        "weight_bits": None,
        "skip_patterns": ["head"],
        "layer_overrides": {
            "attn.qkv": {"weight_bits": 3, "weight_group_size": 16},
            "mlp.fc1": {"weight_bits": 8, "act_bits": 8, "act_group_size": 16},
        },
        "compensate": False,
        "sweeps": 0,
        "ridges": [],
    }
    operators = quant_operators(quantize(**changes))
    stored = {
        name: (operator.weight_scheme.code_bits, operator.weight_scheme.group)
        for name, operator in operators.items()
        if isinstance(operator.weight_scheme, MultipliedWeight)
    }
    assert stored == {"attn.qkv": (3, 16), "mlp.fc1": (8, 0)}  # 8-bit codes have no multipliers
    inputs = operators["mlp.fc1"].input_scheme
    inputs = getattr(inputs, "inner", inputs)
    assert (inputs.how.bits, inputs.how.group) == (8, 16)
    assert "head" not in operators


def test_ahead_of_plain_groups(default):
    model, x = small_net(), images(32, seed=7)
    reference = run(model, x)
    plain = quantize(
        token_zero="none",
        pixel_zero="none",
        transforms=[],
        equalize=False,
        compensate=False,
        sweeps=0,
        ridges=[],
        correct_bias=False,
        trials=1,
    )
    assert likeness(run(default, x), reference) > likeness(run(plain, x), reference) + 0.5


def test_eight_bits_are_next_to_float():
    model, x = small_net(), images(32, seed=7)
    eight = quantize(weight_bits=8, act_bits=8)
    assert likeness(run(eight, x), run(model, x)) > 33


@pytest.mark.parametrize("off", [{"weight_bits": None}, {"act_bits": None}])
def test_one_side_float_is_better_than_none(off, default):
    model, x = small_net(), images(32, seed=7)
    reference = run(model, x)
    assert likeness(run(quantize(**off), x), reference) > likeness(run(default, x), reference)


def test_outliers_behind_norms_make_no_difference(default):
    """Planted factors cancel: the equalised network is the same one."""
    planted = plant_outliers(small_net(), images(8, seed=1), strength=300.0, channels=0.1)
    x = images(32, seed=7)
    reference = run(small_net(), x)
    hurt = quantize(planted, equalize=False, transforms=[])
    stressed = likeness(run(quantize(planted), x), reference)
    assert stressed > likeness(run(default, x), reference) - 1.5
    assert stressed > likeness(run(hurt, x), reference) + 1


def test_saved_models_come_back_bit_for_bit(default, tmp_path):
    assert any("transformed" in sim.input_scheme.kind for sim in quant_operators(default).values())
    codtdq.save(default, tmp_path / "model")
    loaded = codtdq.load(tmp_path / "model", model=small_net(seed=5), backend="reference")
    x = images(3, seed=8)
    assert torch.equal(run(loaded, x), run(default, x))


def test_resumes_where_it_was(default, tmp_path, monkeypatch):
    from codtdq.methods.plus import sequence

    def state(**changes):
        return apply_method(small_net(), METHOD, BATCHES, state_dir=tmp_path, changes=changes)

    fitted = []
    fit_layer = sequence.fit_layer
    monkeypatch.setattr(sequence, "fit_layer", lambda *a: fitted.append(1) or fit_layer(*a))
    x = images(3, seed=8)
    state()
    files = sorted(tmp_path.glob("plus-*/*.safetensors"))
    assert len(fitted) == len(files) == len(quant_operators(default))
    for path in files[::2]:
        path.unlink()
    fitted.clear()
    again = state()
    assert len(fitted) == len(files[::2])
    assert torch.equal(run(again, x), run(default, x))
    fitted.clear()
    state(sweeps=1)  # another setting starts anew
    assert len(fitted) == len(files)


@pytest.mark.parametrize(
    "change",
    [
        {"trials": 0},
        {"trials": "x"},
        {"act_group_size": 0},
        {"weight_group_size": -3},
        {"sweeps": -1},
        {"transforms": "hadamard"},
        {"ridges": 0.1},
        {"images": 0},
    ],
)
def test_settings_are_checked(change):
    with pytest.raises(ConfigError, match=f"{next(iter(change))} is .*accepted"):
        PlusConfig().replace(**change)


def test_a_resumed_calibration_runs_as_many_lanes(default, tmp_path, monkeypatch):
    for name in (
        "FEW_PIXELS",
        "FEW_IMAGES",
        "STREAMS",
        "STREAM_PIXELS",
        "POOLED",
        "ROWS",
        "ROWS_PER_COLUMN",
    ):
        monkeypatch.setattr(sequence, name, 1)

    def calibrate():
        return apply_method(small_net(), METHOD, BATCHES, state_dir=tmp_path)

    whole = calibrate()
    files = sorted(tmp_path.rglob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns)
    assert len(files) > 4
    for file in files[-2:]:
        file.unlink()
    again = calibrate()
    assert again.quant_record.notes == whole.quant_record.notes
    counts = {fact["streams"] for fact in whole.quant_record.notes["operators"].values()}
    assert len(counts) > 1
    x = images(2, seed=3)
    assert torch.equal(run(again, x), run(whole, x))


def test_an_unknown_transform_is_named():
    with pytest.raises(codtdq.errors.ConfigError, match="'twist' is unknown; accepted: shift"):
        quantize(transforms=["twist"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_real_networks_stay_within_the_budget(name):
    model = codtdq.create_model(name).eval()
    data = CalibrationImages(model, open_dataset("camosynth/calib", limit=8), count=8, batch_size=2)
    quantized = apply_method(model, METHOD, data)
    assert quantized.quant_record.bits["weight"] <= 4.6
    assert quantized.quant_record.bits["activation"] <= 4.6
    val = next(iter(CalibrationImages(model, open_dataset("camosynth/val", limit=8), batch_size=8)))
    logits = [mask_logits(m, model.info, val) for m in (quantized, model)]
    first, second = (torch.sigmoid(y) > 0.5 for y in logits)
    assert float((first & second).sum() / (first | second).sum()) > 0.85
