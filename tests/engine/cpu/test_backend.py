"""Who executes a model: the choice and its reasons, copies, files, changes, gradients."""

import copy
import io
import json
import pickle

import pytest
import torch
from engine_cases import distance, native_only, needs_engine, quantized
from torch import nn

import codtdq
import small_nets
from codtdq.engine import BackendRecord, backend_of, predict_backend, use_backend
from codtdq.engine import cpu as native
from codtdq.engine.cpu import library
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.evaluation.provenance import provenance
from codtdq.methods import outline, quantize_model
from codtdq.operators import listening, quant_operators
from small_nets import simulate

pytestmark = needs_engine


def net(config="cod-tdq", seed=0, **changes):
    """All kinds of operators; the one whose weights stay float is simulated."""
    return simulate(small_nets.small_net(seed=seed), net_config(config, **changes))


def net_config(config="cod-tdq", **changes):
    return codtdq.preset(config, **{"layer_overrides": {"mix": {"weight_bits": None}}} | changes)


def outputs(model, x=None):
    with torch.no_grad():
        return model(small_nets.images() if x is None else x)


def count_runs(model):
    """A list to which every run of an executor adds its operator's name."""
    runs = []
    for name, operator in quant_operators(model).items():
        if operator.executor is not None:

            def counted(x, name=name, execute=operator.executor):
                runs.append(name)
                return execute(x)

            operator.executor = counted
    return runs


@pytest.fixture
def without_engine(monkeypatch):
    monkeypatch.setattr(library, "_library", None)
    monkeypatch.setattr(library, "_reason", "no compiler was there")


def test_auto_takes_the_engine_and_says_why():
    model = quantize_model(small_nets.small_net(), net_config())
    assert backend_of(model) is None
    record = use_backend(model)
    assert backend_of(model) is record and record.name == "cpu"
    assert native.instruction_set() in record.reason
    assert record.fallbacks == {"mix": "its weight stays float"}
    assert set(record.native) == set(quant_operators(model)) - {"mix"}
    assert model.attn.qkv.executor is not None and model.mix.executor is None
    json.dumps(record.to_dict())


def test_quantize_takes_a_backend_and_auto_is_the_default():
    for backend, name in ((None, "cpu"), ("auto", "cpu"), ("cpu", "cpu"), ("reference",) * 2):
        chosen = {} if backend is None else {"backend": backend}
        model = codtdq.quantize(small_nets.small_net(), net_config(), **chosen)
        assert backend_of(model).name == name
    with pytest.raises(ConfigError, match="'gpu'; accepted: auto, reference, cpu"):
        codtdq.quantize(small_nets.small_net(), net_config(), backend="gpu")


def test_reference_and_back():
    model = net()
    simulated = outputs(model)
    use_backend(model, "cpu")
    runs = count_runs(model)
    assert torch.equal(outputs(model), simulated)  # the same bits, whoever computes
    assert sorted(runs) == sorted(set(quant_operators(model)) - {"mix"})
    record = use_backend(model, "reference")
    assert record == BackendRecord("reference", "asked for")
    assert torch.equal(outputs(model), simulated)


def test_unknown_backend():
    with pytest.raises(ConfigError, match="'gpu'; accepted: auto, reference, cpu"):
        use_backend(net(), "gpu")


def test_a_named_backend_that_cannot_run_is_an_error(without_engine, tmp_path):
    model = net()
    with pytest.raises(UnsupportedError, match="no compiler was there"):
        use_backend(model, "cpu")
    assert use_backend(model, "auto") == BackendRecord("reference", "no compiler was there")
    codtdq.save(model, tmp_path / "net")
    with pytest.raises(UnsupportedError, match="no compiler was there"):
        codtdq.load(tmp_path / "net", model=small_nets.small_net(), backend="cpu")
    assert outputs(model).isfinite().all()


def test_turned_off_by_hand_or_by_the_environment(monkeypatch):
    with native.disabled():
        with pytest.raises(UnsupportedError, match="turned off"):
            use_backend(net(), "cpu")
        assert use_backend(net(), "auto").name == "reference"
    monkeypatch.setattr(library, "_library", None)
    monkeypatch.setattr(library, "_reason", None)
    monkeypatch.setenv(library.SWITCH, "0")
    assert use_backend(net()).reason == "turned off by CODTDQ_NATIVE=0"
    monkeypatch.setattr(library, "_reason", None)
    monkeypatch.setenv(library.SWITCH, "mmx")
    with pytest.raises(ConfigError, match="no such instruction set here; available"):
        use_backend(net())
    monkeypatch.setattr(library, "_reason", None)
    monkeypatch.setenv(library.SWITCH, "generic")
    record = use_backend(net())
    assert record.name == "cpu" and record.instruction_set == "generic"
    library.select(library.available_sets()[0])


def test_nothing_to_execute_natively():
    with pytest.raises(UnsupportedError, match="no quantized operators"):
        use_backend(nn.Linear(4, 4), "cpu")
    assert use_backend(nn.Linear(4, 4)).name == "reference"
    elsewhere = net().to("meta")
    assert use_backend(elsewhere).reason == "the model is on meta"


@pytest.mark.parametrize(
    ("module", "mode", "changes", "reason"),
    [
        (nn.Linear(8, 4), "per_token_group", {"scales": "float"}, "its scales are float"),
        (
            nn.Linear(64, 4),
            "per_tensor",
            {"scales": "float", "weight_group_size": 16},
            "its scales are float",
        ),
        (nn.Linear(8, 4), "per_token_group", {"weight_bits": None}, "its weight stays float"),
        (nn.Linear(8, 4), "per_token_group", {"act_bits": None}, "its input stays float"),
        (nn.Linear(8, 4), "per_token_group", {"compute_dtype": "fp16"}, "compute_dtype"),
        (nn.Linear(300, 4), "per_token_group", {"act_group_size": 256}, "groups of 256"),
        (nn.Conv2d(8, 4, 2, padding="same"), "per_token_group", {}, "same of an even kernel"),
        (
            nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"),
            "per_tensor",
            {"preset": "dcrp-only"},
            "padding reflect would count",
        ),
    ],
)
def test_operators_that_stay_simulated_are_listed_with_the_reason(module, mode, changes, reason):
    layer = quantized(module, mode, **changes)
    record = use_backend(nn.ModuleList([layer, quantized(nn.Linear(8, 4))]), "cpu")
    assert record.native == ("1",)
    assert list(record.fallbacks) == ["0"] and reason in record.fallbacks["0"]
    assert layer.backend is None and layer._buffers["weight_cache"] is not None
    conv = isinstance(module, nn.Conv2d)
    x = torch.randn(2, 8, 5, 5) if conv else torch.randn(2, module.in_features)
    assert outputs(layer, x).isfinite().all()
    alone = nn.Sequential(layer)
    with pytest.raises(UnsupportedError, match=f"no operator of the model.*{reason}"):
        use_backend(alone, "cpu")
    record = use_backend(alone)
    assert record.name == "reference" and reason in record.reason
    assert record.execution == "simulated"


def test_a_depthwise_convolution_may_have_weights_of_any_width():
    torch.manual_seed(0)
    layer = quantized(nn.Conv2d(8, 8, 3, padding=1, groups=8), weight_bits=8)
    x = torch.randn(2, 8, 5, 5)
    simulated = outputs(layer, x)
    assert use_backend(layer, "cpu").native == ("",)
    found = outputs(layer, x)
    assert layer.executor is not None and distance(found, simulated) < 2e-6


@pytest.mark.parametrize("config", ["cod-tdq", "w4a4", "dstg-only"])
def test_whole_models_agree(config):
    model = net(config)
    with native.disabled():
        simulated = outputs(model)
    assert use_backend(model).native
    assert distance(outputs(model), simulated) < 1e-4  # later layers may round a tie differently


def test_a_transformer_agrees():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, activation="gelu")
    model = simulate(nn.TransformerEncoder(layer, 2).eval(), "cod-tdq")
    x = torch.randn(2, 10, 48)
    with native.disabled():
        simulated = outputs(model, x)
    assert use_backend(model).native
    assert distance(outputs(model, x), simulated) < 1e-4


def test_load_on_every_backend(tmp_path):
    model = net()
    codtdq.save(model, tmp_path / "net")
    found = {
        name: codtdq.load(tmp_path / "net", model=small_nets.small_net(), backend=name)
        for name in ("auto", "reference", "cpu")
    }
    assert {name: backend_of(m).name for name, m in found.items()} == {
        "auto": "cpu",
        "reference": "reference",
        "cpu": "cpu",
    }
    assert torch.equal(outputs(found["reference"]), outputs(model))
    assert torch.equal(outputs(found["auto"]), outputs(found["cpu"]))
    assert distance(outputs(found["cpu"]), outputs(model)) < 1e-4
    with pytest.raises(ConfigError, match="accepted: auto"):
        codtdq.load(tmp_path / "net", model=small_nets.small_net(), backend="tpu")


def caches(model):
    return {
        n for n, op in quant_operators(model).items() if op._buffers["weight_cache"] is not None
    }


def test_native_operators_keep_no_float_weights(tmp_path):
    codtdq.save(net(), tmp_path / "net")

    def load(**options):
        return codtdq.load(tmp_path / "net", model=small_nets.small_net(), **options)

    everything = set(quant_operators(net()))
    assert caches(load(backend="cpu")) == {"mix"}
    assert caches(load(backend="reference")) == everything
    assert caches(load(backend="reference", cache_weights=False)) == set()
    assert caches(load(backend="cpu", cache_weights=False)) == set()
    slim = load(backend="cpu", cache_weights=False)
    assert torch.equal(outputs(slim), outputs(load(backend="cpu")))
    model = net()
    assert caches(model) == everything
    use_backend(model)
    assert caches(model) == {"mix"}
    use_backend(model, "reference")
    assert caches(model) == everything


def test_deep_copies_have_weights_of_their_own():
    model = net()
    use_backend(model)
    expected = outputs(model)
    twin = copy.deepcopy(model)
    handles = [m.attn.qkv.executor for m in (model, twin)]
    assert torch.equal(outputs(twin), expected) and handles[1] is None  # made by the first call
    places = [m.attn.qkv.executor._weights.packed.data_ptr() for m in (model, twin)]
    assert places[0] != places[1]
    assert backend_of(twin) == backend_of(model)
    del model, handles
    assert torch.equal(outputs(twin), expected)


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_pickles_run_on_the_same_backend(how):
    model = net()
    use_backend(model)
    expected = outputs(model)
    if how == "pickle":
        restored = pickle.loads(pickle.dumps(model))
    else:
        stream = io.BytesIO()
        torch.save(model, stream)
        stream.seek(0)
        restored = torch.load(stream, weights_only=False)
    assert torch.equal(outputs(restored), expected)
    assert restored.attn.qkv.executor is not None


def test_new_weights_are_used_at_once():
    first, second = net(), net(seed=5)
    use_backend(first), use_backend(second)
    expected = outputs(second)
    assert distance(outputs(first), expected) > 0.01
    first.load_state_dict(second.state_dict())
    assert torch.equal(outputs(first), expected)


def test_refreshed_scales_are_used_at_once():
    layer = native_only(quantized(nn.Linear(8, 4, bias=False)))
    x = torch.randn(3, 8)
    before = outputs(layer, x)
    layer.weight_scheme.scale.mul_(2)
    layer.refresh()
    assert torch.allclose(outputs(layer, x), 2 * before)


def test_casts_keep_the_backend():
    model = net()
    use_backend(model)
    seen = {}

    def keep(name):
        def hook(module, given, result):
            seen[name] = (given[0].clone(), result.clone())

        return hook

    hooks = [m.register_forward_hook(keep(n)) for n, m in quant_operators(model).items()]
    expected = outputs(model)
    for hook in hooks:
        hook.remove()
    # float modules between the operators round elsewhere in double, and a difference of 1e-7 moves
    # 4-bit codes at ties: so operators are compared one by one, on the same inputs
    double = outputs(model.double(), small_nets.images().double())
    assert double.dtype == torch.float64 and distance(double, expected) < 0.2
    for name, (x, y) in seen.items():
        operator = model.get_submodule(name)
        found = outputs(operator, x.double())
        assert found.dtype == torch.float64 and torch.equal(found, y.double()), name
        assert (operator.executor is not None) is (name != "mix")
    half = outputs(model.bfloat16(), small_nets.images().bfloat16())
    assert half.dtype == torch.bfloat16 and distance(half, expected) < 0.2
    for name, (x, _) in seen.items():
        operator, x = model.get_submodule(name), x.bfloat16()
        if name != "mix":
            assert torch.equal(outputs(operator, x), outputs(operator, x.float()).bfloat16()), name


def test_a_model_that_moved_away():
    layer = native_only(quantized(nn.Linear(8, 4)))
    layer.to("meta")
    assert not layer._native(torch.empty(2, 8, device="meta"))  # that device computes itself
    with pytest.raises(UnsupportedError, match="the weights are on meta"):
        layer(torch.randn(2, 8))


def test_disabled_means_simulated():
    model = net()
    with native.disabled():
        expected = outputs(model)
    use_backend(model)
    runs = count_runs(model)
    with native.disabled():
        assert torch.equal(outputs(model), expected) and not runs
    assert torch.equal(outputs(model), expected) and runs


def test_listeners_hear_the_simulation():
    layer = native_only(quantized(nn.Linear(64, 4)))
    x, heard = torch.randn(3, 64), []
    fast = outputs(layer, x)
    with listening({"layer": layer}, lambda *facts: heard.append(facts)):
        slow = outputs(layer, x)
    ((name, tokens, x_hat, statistics),) = heard
    assert name == "layer" and torch.equal(tokens, x.unsqueeze(1))
    assert torch.equal(x_hat, statistics.x_hat) and not torch.equal(x_hat, tokens)
    assert statistics.eta.shape == (3, 1, 2) and distance(fast, slow) < 2e-6
    assert torch.equal(outputs(layer, x), fast) and len(heard) == 1


def test_gradients_take_the_simulation():
    layer = native_only(quantized(nn.Linear(8, 4)))
    twin = copy.deepcopy(layer)
    use_backend(twin, "reference")
    x = torch.randn(3, 8, requires_grad=True)
    assert torch.equal(layer(x), twin(x)) and layer(x).requires_grad
    layer.bias.requires_grad_(True)
    layer(x.detach()).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((4,), 3.0))
    with torch.no_grad():
        assert not layer(x).requires_grad


def test_traces_record_the_simulation():
    """A trace cannot see what the engine writes; it must not record an empty tensor."""
    layer = native_only(quantized(nn.Linear(8, 4)))
    x, other = torch.randn(3, 8), torch.randn(3, 8)
    with torch.no_grad():
        traced = torch.jit.trace(layer, x)
        assert distance(traced(other), layer(other)) < 2e-6


def test_inference_mode():
    with torch.inference_mode():
        layer = native_only(quantized(nn.Linear(8, 4)))
        assert layer(torch.randn(3, 8)).isfinite().all()


def test_results_tell_who_computed_them():
    model = quantize_model(small_nets.small_net(), net_config())
    facts = provenance(model)
    assert facts["execution"] == "simulated" and facts["backend"] is None
    use_backend(model, "reference")
    assert provenance(model)["backend"]["name"] == "reference"
    use_backend(model)
    facts = provenance(model)
    assert facts["execution"] == f"native ({native.instruction_set()})"
    assert facts["backend"]["fallbacks"] == {"mix": "its weight stays float"}
    assert facts["backend"]["native_operators"] == len(quant_operators(model)) - 1
    assert provenance(nn.Linear(2, 2))["execution"] == "fp32"
    json.dumps(facts)


def test_the_backend_is_known_from_a_sketch():
    _, sketch = outline(small_nets.small_net(), net_config(), small_nets.images(1))
    found = predict_backend(sketch)
    assert backend_of(sketch) is None and sketch.attn.qkv.executor is None
    actual = use_backend(net())
    assert (found.name, found.reason) == (actual.name, actual.reason)
    assert (found.native, found.fallbacks) == (actual.native, actual.fallbacks)


def test_a_sketch_tells_that_there_is_no_engine(without_engine):
    _, sketch = outline(small_nets.small_net(), codtdq.preset("cod-tdq"), small_nets.images(1))
    found = predict_backend(sketch)
    assert found == BackendRecord("reference", "no compiler was there")
