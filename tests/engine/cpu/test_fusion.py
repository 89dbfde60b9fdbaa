"""What the engine does along with a product, and that it changes no result."""

import copy
import io
import threading

import pytest
import torch
from engine_cases import SETS, distance, instruction_set, needs_engine
from torch import nn

import codtdq
from codtdq.engine import cpu as native
from codtdq.engine import fusion, use_backend
from codtdq.engine.cpu import encoders
from codtdq.models.escnet_blocks import GatedGelu
from codtdq.operators import listening, quant_operators
from small_nets import simulate

pytestmark = needs_engine


class Net(nn.Module):
    """Followers of every kind, three readers of one tensor, and pairs that must not be fused."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.relu = nn.ReLU()
        self.left = nn.Conv2d(32, 16, 5, padding=2)
        self.right = nn.Conv2d(32, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.gelu = nn.GELU()
        self.fc = nn.Linear(32, 32)
        self.act = nn.GELU()
        self.again = nn.Conv2d(32, 32, 1)  # read by the norm and by a sum
        self.kept = nn.BatchNorm2d(32)
        self.gated, self.gate = nn.Conv2d(32, 32, 3, padding=1, groups=32), GatedGelu()
        self.dense, self.dense_gate = nn.Conv2d(16, 64, 1), GatedGelu()  # not depthwise
        self.tanh_fc, self.tanh = nn.Linear(32, 8), nn.GELU(approximate="tanh")

    def forward(self, x):
        y = self.relu(self.norm(self.stem(x)))
        z = torch.cat([self.left(y), self.right(y)], 1) + self.gelu(self.depthwise(y))
        a = self.again(z)
        z = self.kept(a) + a
        z = self.dense_gate(self.dense(self.gate(self.gated(z))))
        tokens = self.act(self.fc(z.flatten(2).transpose(1, 2)))
        return self.tanh(self.tanh_fc(tokens))


FUSED = {"stem": ["norm", "relu"], "depthwise": ["gelu"], "gated": ["gate"], "fc": ["act"]}


def net(preset="cod-tdq-guarded", seed=0):
    torch.manual_seed(seed)
    model = Net().eval()
    for norm in (model.norm, model.kept):
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)  # negative factors too
        norm.running_mean.normal_(), norm.running_var.uniform_(0.1, 3)
    modes = dict.fromkeys(("linear", "conv", "depthwise", "first"), "per_token_group")
    return simulate(model, codtdq.preset(preset, act_modes=modes, float_storage="fp32"))


def image(batch=2, seed=1):
    return torch.randn(batch, 3, 9, 7, generator=torch.Generator().manual_seed(seed))


def run(model, x=None):
    with torch.no_grad():
        return model(image() if x is None else x)


def names(model):
    by_module = {module: name for name, module in model.named_modules()}
    return {
        name: [by_module[f] for f in op.followers]
        for name, op in quant_operators(model).items()
        if op.followers
    }


def test_followers_are_found_and_only_those():
    model = net()
    record = use_backend(model, "cpu", example=image())
    assert names(model) == FUSED and record.fused == 5 and record.unfused is None
    assert model.relu.forward is fusion.passed and "forward" not in vars(model.kept)
    use_backend(model, "reference")
    assert names(model) == {} and "forward" not in vars(model.relu)


@pytest.mark.parametrize("name", SETS)
def test_each_fused_operator_gives_what_its_parts_give(name):
    with instruction_set(name):
        model = net()
        apart = net()
        use_backend(model, "cpu", example=image())
        for operator, followers in FUSED.items():
            seen = []
            hook = apart.get_submodule(operator).register_forward_pre_hook(
                lambda module, args, seen=seen: seen.append(args[0])
            )
            run(apart)
            hook.remove()
            with torch.no_grad():
                expected = apart.get_submodule(operator)(seen[0]).double()
                for follower in followers:
                    expected = copy.deepcopy(apart.get_submodule(follower)).double()(expected)
                found = model.get_submodule(operator)(seen[0])
            assert distance(found, expected) < 2e-6, operator


def test_without_the_engine_a_fused_operator_still_does_the_work_of_its_followers():
    model = net()
    expected = run(model)
    use_backend(model, "cpu", example=image())
    with native.disabled():
        assert torch.equal(run(model), expected)
    heard = []
    with listening({"stem": model.stem}, lambda *facts: heard.append(facts)):
        assert distance(run(model), run(net())) < 0.05
    ((name, x, x_hat, statistics),) = heard
    assert name == "stem" and x.shape == x_hat.shape == (2, 63, 3)
    assert statistics.eta.shape == (2, 63, 1)
    model.norm.train(), model.stem.train()
    before = model.norm.running_mean.clone()
    run(model)
    assert not torch.equal(model.norm.running_mean, before)  # statistics of the batch, as asked


def test_an_input_is_quantized_once_for_all_its_readers(monkeypatch):
    model = net()
    record = use_backend(model, "cpu", example=image(), capture=False)
    assert record.sharing == 2  # left, right and depthwise read one tensor
    counted = []
    encode = encoders.carry_groups
    monkeypatch.setattr(
        encoders,
        "carry_groups",
        lambda x, *rest, **how: counted.append(x.shape) or encode(x, *rest, **how),
    )
    together = run(model)
    assert counted.count(torch.Size([2, 32, 9, 7])) == 3  # the shared tensor, z, and z once more
    for operator in quant_operators(model).values():
        operator.shared = operator.executor = None
    assert torch.equal(run(model), together)


def test_kept_codes_are_never_those_of_other_values():
    shared = fusion.SharedInput(2)

    def encode(x):
        return ("codes", float(x.sum()))

    x = torch.ones(4, 3)
    first = shared.codes(x, encode)
    assert shared.codes(x, lambda y: pytest.fail("encoded twice")) == first
    shared.codes(x, encode)
    x.add_(1)  # written to between two readers
    assert shared.codes(x, encode) == ("codes", 24.0)
    y = torch.full((4, 3), 5.0)
    assert shared.codes(y, encode) == ("codes", 60.0)  # another tensor before the first one's last
    assert shared.codes(y[:2], encode) == ("codes", 30.0)
    others = []
    thread = threading.Thread(target=lambda: others.append(shared.codes(y[:2], encode)))
    thread.start(), thread.join()
    assert others == [("codes", 30.0)]
    rows = torch.randn(1, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    shared = fusion.SharedInput(2)
    kept = shared.codes(rows, encode)
    flat = rows.permute(0, 2, 3, 1).reshape(-1, 3)
    assert shared.codes(flat, lambda y: pytest.fail("the same rows")) == kept


def test_copies_files_and_threads():
    model = net()
    use_backend(model, "cpu", example=image())
    expected = run(model)
    twin = copy.deepcopy(model)
    assert twin.stem.followers[0] is twin.norm and torch.equal(run(twin), expected)
    with torch.no_grad():
        model.norm.weight.zero_()
    assert torch.equal(run(twin), expected)
    buffer = io.BytesIO()
    torch.save(twin, buffer)
    buffer.seek(0)
    assert torch.equal(run(torch.load(buffer, weights_only=False)), expected)
    results = []
    threads = [
        threading.Thread(target=lambda s=s: results.append((s, run(twin, image(seed=s)))))
        for s in range(4)
    ]
    alone = {s: run(twin, image(seed=s)) for s in range(4)}
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(torch.equal(y, alone[s]) for s, y in results)


def test_loading_other_norms_is_seen():
    model, other = net(), net()
    use_backend(model, "cpu", example=image())
    with torch.no_grad():
        other.norm.bias.add_(3.0)
    model.load_state_dict(other.state_dict())
    use_backend(other, "cpu", example=image())
    assert torch.equal(run(model), run(other))


def test_a_model_that_cannot_be_traced_is_not_fused_and_says_so():
    model = net()
    assert "no example was given" in use_backend(model, "cpu").unfused
    record = use_backend(model, "cpu", example=torch.zeros(1, 5, 9, 7))
    assert record.unfused.startswith("the trace failed: ") and record.fused == 0
    assert distance(run(model), run(net())) < 0.05


@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_registered_models_keep_their_maps_in_channels_last_order(name):
    model = simulate(codtdq.create_model(name), "cod-tdq-guarded")
    record = use_backend(model, "cpu")
    assert record.fused > 10 and record.sharing > 5 and not record.fallbacks
    orders = []
    for operator in quant_operators(model).values():
        if isinstance(operator, nn.Conv2d):
            operator.register_forward_hook(lambda m, a, y: orders.append(y))
    with torch.inference_mode():
        model(torch.randn(1, 3, 64, 96))
    assert all(y.is_contiguous(memory_format=torch.channels_last) for y in orders)
