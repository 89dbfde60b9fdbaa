"""cod-tdq-plus on the native engine: operator by operator, whole networks, files, reasons."""

import copy

import pytest
import torch
from engine_cases import SETS, distance, instruction_set, needs_engine, same, site_of, torch_threads
from torch import nn

import codtdq
from codtdq.engine import backend_of, use_backend
from codtdq.engine.cpu import library
from codtdq.errors import UnsupportedError
from codtdq.methods import apply_method
from codtdq.numerics import ActivationSpec
from codtdq.numerics.affine import nearest
from codtdq.operators import QuantLinear, listening, operator_for, quant_operators
from codtdq.planning.units import unit_of
from codtdq.schemes.carried import PixelCarriers, StaticCarriers, TokenCarriers
from codtdq.schemes.inputs import DynamicToken, StaticUniform
from codtdq.schemes.lowered import FLOAT_SCALES
from codtdq.schemes.multiplied import MultipliedWeight, MultiplierFormat
from codtdq.schemes.projected import ProjectedRange
from codtdq.schemes.token_groups import TokenGroups
from codtdq.schemes.transforms import Transform, Transformed
from codtdq.schemes.weight_groups import group_index, weight_rows
from small_nets import simulate

pytestmark = needs_engine


def weight_of(weight, group=32):
    """A weight to the nearest codes, every third multiplier negative."""
    rows, index = weight_rows(weight.detach()), group_index(weight.shape, group)
    largest = torch.zeros(len(rows), int(index.max()) + 1)
    largest.scatter_reduce_(1, index.expand_as(rows), rows.abs(), "amax")
    form = MultiplierFormat.covering(largest / 7, 4)
    scales = form.round(largest / 7)
    scales[:, ::3] *= -1
    codes = nearest(rows / scales[:, index]).clamp(-8, 7)
    return MultipliedWeight.from_codes(codes, scales, form.unit, weight.shape, 4, group)


def simulated(module, inputs, group=32):
    """The operator as the method leaves it: units are what it allows."""
    inner = inputs.inner if isinstance(inputs, Transformed) else inputs
    if isinstance(inner, ProjectedRange):
        inner.unit = unit_of(module, inner.how.ranges)
    else:
        inner.how = inner.how._replace(unit=unit_of(module, inner.how.ranges))
    return adopted(module, inputs, group)


def adopted(module, inputs, group=32):
    weight = weight_of(module.weight, group)
    return operator_for(module).adopt(module.eval(), site_of(module), inputs=inputs, weight=weight)


def tokens(channels, transformed=False, **settings):
    inner = TokenCarriers(4, **{"trials": 4} | settings)
    if not transformed:
        return inner
    generator = torch.Generator().manual_seed(channels)
    vectors = torch.randn(channels, generator=generator), torch.rand(channels) + 0.2
    change = Transform(*vectors, torch.randperm(channels, generator=generator), True)
    return Transformed(inner, transform=change)


def projected(**settings):
    """The paper's ranges, which a base preset puts in front of weights in groups."""
    return ProjectedRange.of(ActivationSpec(scales="integer", **settings))


def pixels(**settings):
    return PixelCarriers(4, **{"trials": 4} | settings)


def maps(channels, *sides):
    return torch.randn(2, channels, *sides).contiguous(memory_format=torch.channels_last)


CASES = {
    "linear": lambda: (nn.Linear(96, 40), tokens(96), torch.randn(2, 30, 96)),
    "linear of rows": lambda: (nn.Linear(64, 8, bias=False), tokens(64), torch.randn(7, 64)),
    "linear of one row": lambda: (nn.Linear(64, 8), tokens(64), torch.randn(64)),
    "narrow linear": lambda: (nn.Linear(18, 33), tokens(18), torch.randn(2, 5, 5, 18)),
    "short groups": lambda: (nn.Linear(70, 24), tokens(70), torch.randn(3, 11, 70)),
    "transformed": lambda: (nn.Linear(96, 40), tokens(96, True), torch.randn(2, 30, 96)),
    "no zero-point": lambda: (
        nn.Linear(64, 40),
        tokens(64, zero_point=False),
        torch.randn(2, 30, 64),
    ),
    "eight bits": lambda: (nn.Linear(64, 40), TokenCarriers(8), torch.randn(2, 30, 64)),
    "image": lambda: (
        nn.Conv2d(3, 20, 7, stride=4, padding=3),
        StaticCarriers.spanning(torch.tensor([-2.0]), torch.tensor([2.5]), 8, "image"),
        torch.randn(2, 3, 24, 20),
    ),
    "few channels": lambda: (nn.Conv2d(5, 20, 3, padding=1), pixels(), maps(5, 9, 8)),
    "a convolution in groups": lambda: (
        nn.Conv2d(40, 20, 3, padding=1, groups=4),
        tokens(40),
        maps(40, 9, 8),
    ),
    "channels": lambda: (
        nn.Conv2d(40, 20, 3, padding=1),
        projected(mode="per_channel", tau=None, zero_ratio=None),
        maps(40, 9, 8),
    ),
    "projected": lambda: (nn.Linear(70, 40), projected(), torch.randn(2, 30, 70)),
    "projected conv": lambda: (nn.Conv2d(48, 20, 3, padding=1), projected(), maps(48, 9, 8)),
    "one range": lambda: (nn.Linear(96, 40), projected(mode="per_tensor"), torch.randn(2, 30, 96)),
    "conv": lambda: (
        nn.Conv2d(48, 20, 3, stride=2, padding=2, dilation=2),
        tokens(48),
        maps(48, 15, 13),
    ),
    "transformed conv": lambda: (
        nn.Conv2d(64, 20, 3, padding=1),
        tokens(64, True),
        torch.randn(2, 64, 9, 8),
    ),
    "repeated border": lambda: (
        nn.Conv2d(32, 20, 3, padding=1, padding_mode="reflect"),
        tokens(32),
        maps(32, 9, 8),
    ),
    "conv1d": lambda: (nn.Conv1d(40, 12, 5, padding=2), tokens(40), torch.randn(2, 40, 21)),
    "depthwise": lambda: (nn.Conv2d(40, 40, 3, padding=1, groups=40), pixels(), maps(40, 15, 13)),
    "depthwise plain order": lambda: (
        nn.Conv2d(24, 24, 5, padding=2, stride=2, groups=24),
        pixels(),
        torch.randn(2, 24, 11, 9),
    ),
    "depthwise times two": lambda: (
        nn.Conv2d(24, 48, 3, padding=1, groups=24),
        pixels(),
        maps(24, 8, 9),
    ),
    "depthwise on few pixels": lambda: (
        nn.Conv2d(24, 24, 3, padding=1, groups=24),
        pixels(),
        maps(24, 2, 3),
    ),
    "depthwise 1d": lambda: (
        nn.Conv1d(20, 20, 3, padding=1, groups=20),
        pixels(),
        torch.randn(2, 20, 45),
    ),
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("case", CASES)
def test_an_operator_gives_what_its_simulation_gives(case, name):
    torch.manual_seed(0)
    module, inputs, x = CASES[case]()
    operator = simulated(module, inputs)
    with torch.no_grad(), instruction_set(name):
        expected = operator(x)
        record = use_backend(nn.Sequential(operator), "cpu", example=x)
        assert record.native == ("0",) and not record.fallbacks
        assert operator.executor is not None
        found = operator(x)
        assert found.shape == expected.shape and found.stride() == expected.stride()
        assert torch.equal(found, operator_without_engine(operator, x))
        for count in (2, 3):
            with torch_threads(count):
                assert torch.equal(operator(x), found)
        bad = x.clone()
        bad[(0,) * x.ndim] = float("nan")
        assert same(operator(bad), operator_without_engine(operator, bad))
        assert bool(operator(bad).isnan().any())


def operator_without_engine(operator, x):
    with library.disabled():
        return operator(x)


class Net(nn.Module):
    """Two readers of one tensor, a norm and activations behind operators, a head."""

    def __init__(self):
        super().__init__()
        self.left = nn.Conv2d(32, 32, 5, padding=2)
        self.right = nn.Conv2d(32, 32, 3, padding=1)
        self.norm, self.act = nn.BatchNorm2d(32), nn.ReLU()
        self.mix = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.gelu, self.head = nn.GELU(), nn.Linear(32, 5)

    def forward(self, x):
        y = self.act(self.norm(self.left(x))) + self.right(x)
        return self.head(self.gelu(self.mix(y)).flatten(2).transpose(1, 2))


def net(right=None):
    torch.manual_seed(1)
    model = Net().eval()
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2)
    simulated(model.left, tokens(32))
    simulated(model.right, tokens(32) if right is None else right)
    simulated(model.mix, pixels())
    simulated(model.head, tokens(32))
    return model


def outputs(model, x):
    with torch.no_grad():
        return model(x)


def close(found, expected):
    return (found - expected).abs().max() <= 2e-6 * expected.abs().max()


def test_followers_are_fused_and_inputs_shared():
    model, x = net(), maps(32, 10, 9)
    expected = outputs(model, x)
    record = use_backend(model, "cpu", example=x)
    assert (record.fused, record.sharing) == (3, 1)
    assert close(outputs(model, x), expected)
    with library.disabled():
        assert close(outputs(model, x), expected)
    use_backend(model, "reference")
    assert backend_of(model).name == "reference" and model.left.followers == ()
    assert torch.equal(outputs(model, x), expected)


def test_inputs_are_only_shared_on_equal_grids():
    x = maps(32, 10, 9)
    for other in (tokens(32, trials=2), tokens(32, True)):
        model = net(other)
        expected = outputs(model, x)
        assert use_backend(model, "cpu", example=x).sharing == 0
        assert close(outputs(model, x), expected)


def test_listeners_gradients_and_copies_work_as_before():
    model, x = net(), maps(32, 10, 9)
    expected = outputs(model, x)
    use_backend(model, "cpu", example=x)
    assert model.left._buffers["weight_cache"] is None  # the engine has its own form
    heard = []

    def hear(name, x, x_hat, statistics):
        heard.append((name, x_hat.shape, statistics))

    with listening({"right": model.right}, hear):
        assert close(outputs(model, x), expected)
    assert heard == [("right", (2, 90, 32), None)]
    assert close(model(x.clone().requires_grad_()), expected)
    assert close(outputs(copy.deepcopy(model), x), expected)
    with torch.no_grad():
        model.head.bias += 1
        model.head.refresh(cache=False)
    assert close(outputs(model, x), expected + 1)
    use_backend(model, "reference")
    assert model.left._buffers["weight_cache"] is not None


def test_what_stays_simulated_is_listed_with_its_reason():
    torch.manual_seed(0)
    plain = nn.Linear(64, 8)
    model = nn.ModuleDict(
        {
            "native": simulated(nn.Linear(64, 8), tokens(64)),
            "static": adopted(nn.Conv2d(16, 8, 3), StaticUniform(8)),
            "other": adopted(nn.Linear(64, 8), DynamicToken(4)),
            "e4m3": adopted(nn.Linear(64, 8), TokenGroups(4)),
            "paper": adopted(nn.Linear(64, 8), ProjectedRange.of(ActivationSpec())),
            "wide": simulated(nn.Linear(200, 8), tokens(200, group=130)),
            "plain": QuantLinear.adopt(plain, site_of(plain), inputs=tokens(64)),
        }
    )
    record = use_backend(model, "cpu")
    assert record.native == ("native",)
    assert record.fallbacks == {
        "static": "its input scheme 'static-uniform' is only simulated",
        "other": "its input scheme 'dynamic-token' is only simulated",
        "e4m3": FLOAT_SCALES,
        "paper": FLOAT_SCALES,
        "wide": "groups of 130, more than 128",
        "plain": "its weight stays float",
    }
    del model["native"]
    assert use_backend(model).name == "reference"
    with pytest.raises(UnsupportedError, match="no operator of the model can run there"):
        use_backend(model, "cpu")


def image():
    return torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def nearest_codes(architecture):
    """A small network as the method cuts it, without its calibration."""
    model = codtdq.create_model(architecture).eval()
    twin = simulate(copy.deepcopy(model), "cod-tdq")
    for site in (operator.site for operator in quant_operators(twin).values()):
        module = model.get_submodule(site.name)
        if site.role == "first":
            low, high = torch.tensor([-4.0]), torch.tensor([4.0])
            scheme = StaticCarriers.spanning(low, high, 8, "image")
        elif site.kind == "depthwise" or (site.kind != "linear" and site.inputs < 16):
            scheme = pixels()
        else:
            scheme = tokens(site.inputs)
        simulated(module, scheme)
    return model


@pytest.mark.parametrize("architecture", ["cfrn-small", "escnet-small"])
def test_a_whole_network_gives_the_masks_of_its_simulation(architecture):
    model = nearest_codes(architecture)
    seen = {}

    def keep(name):
        def hook(module, given, result):
            seen.setdefault(name, (given[0].clone(), result.clone()))

        return hook

    hooks = [m.register_forward_hook(keep(n)) for n, m in quant_operators(model).items()]
    expected = mask(outputs(model, image()))
    for hook in hooks:
        hook.remove()
    plain = copy.deepcopy(model)
    record = use_backend(model, capture=False)
    assert set(record.native) == set(quant_operators(model)) and not record.fallbacks
    assert record.fused and record.sharing
    # a folded batch norm rounds elsewhere, and a difference of 1e-7 moves 4-bit codes at ties:
    # so each operator is compared on the same input, and masks of the whole only in the large
    for name, operator in quant_operators(model).items():
        x, y = seen[name]
        followed = y.double()
        for follower in operator.followers:
            twin = copy.deepcopy(follower).double()
            followed = type(twin).forward(twin, followed)
        assert distance(outputs(operator, x), followed) < 2e-6, name
    found = mask(outputs(model, image()))
    assert (found - expected).abs().mean() < 2e-2
    assert ((found > 0.5) != (expected > 0.5)).float().mean() < 2e-2
    use_backend(model)  # captured: norms and attention are the engine's own, too
    found = mask(outputs(model, image()))
    assert (found - expected).abs().mean() < 6e-2
    assert ((found > 0.5) != (expected > 0.5)).float().mean() < 4e-2
    for name, operator in quant_operators(plain).items():  # nothing folded: the bits are the same
        x, y = seen[name]
        assert use_backend(nn.Sequential(operator), "cpu").native
        assert torch.equal(outputs(operator, x), y), name
    with torch.no_grad():
        assert torch.equal(mask(plain(image())), expected)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["cfrn-small", "escnet-small"])
def test_a_calibrated_network_saved_and_loaded(architecture, tmp_path):
    cheap = {"compensate": False, "sweeps": 0, "ridges": [], "images": 1}
    model = codtdq.create_model(architecture)
    model = apply_method(model, "cod-tdq-plus", [image()], changes=cheap)
    directory = codtdq.save(model, tmp_path / "plus")
    loaded = codtdq.load(directory)
    record = backend_of(loaded)
    assert record.name == "cpu" and record.native and not record.fallbacks
    reference = codtdq.load(directory, backend="reference")
    assert backend_of(reference).name == "reference"
    expected, found = (mask(outputs(m, image())) for m in (reference, loaded))
    assert torch.equal(mask(outputs(model, image())), expected)  # what was saved comes back
    plain = copy.deepcopy(model)
    use_backend(model)
    assert torch.equal(mask(outputs(model, image())), found)
    use_backend(plain, capture=False)
    # what is folded rounds elsewhere, and so do norms and attention of a captured network: codes at
    # ties move
    for one, bound in ((mask(outputs(plain, image())), 1e-2), (found, 3e-2)):
        assert (one - expected).abs().mean() < bound
        assert ((one > 0.5) != (expected > 0.5)).float().mean() < bound


def test_an_operator_saved_and_loaded(tmp_path):
    model, x = net(), maps(32, 10, 9)
    expected = outputs(model, x)
    use_backend(model, "cpu", example=x)
    torch.save(model, tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt", weights_only=False)
    assert loaded.left.executor is None
    assert close(outputs(loaded, x), expected)


def mask(outputs):
    while isinstance(outputs, tuple | list):
        outputs = outputs[0]
    return outputs.sigmoid()
