"""Batch norms are folded exactly, only where that is possible, and a checkpoint keeps it."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import codtdq
from codtdq.engine.fusion import affine_of
from codtdq.errors import ConfigError
from codtdq.methods import Workbench
from codtdq.methods.registry import config_for, list_methods, method_info
from codtdq.operators.batch_norms import fold_batch_norms
from codtdq.planning import QuantConfig


class Net(nn.Module):
    """Norms that fold (bn1: no bias before it; bn2: Conv1d; bn3: Linear of [B, C]) and others."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.bn_twice = nn.BatchNorm2d(8)  # its convolution is read by a sum as well
        self.conv2, self.bn2 = nn.Conv1d(8, 16, 1), nn.BatchNorm1d(16, affine=False)
        self.tokens, self.bn_tokens = nn.Linear(16, 16), nn.BatchNorm1d(64)  # axis 1: positions
        self.fc, self.bn3 = nn.Linear(16, 4), nn.BatchNorm1d(4)
        self.bn_last = nn.BatchNorm1d(4)  # reads no operator

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        y = self.depthwise(x)
        x = y + self.bn_twice(y)
        x = self.bn2(self.conv2(x.flatten(2))).transpose(1, 2)
        x = self.bn_tokens(self.tokens(x))
        return self.bn_last(torch.relu(self.bn3(self.fc(x.mean(1)))))


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = Net()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.2, 3)
            if module.affine:
                nn.init.normal_(module.weight)  # negative factors too
                nn.init.normal_(module.bias)
    return model.eval()


def images(count=4):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def folded_copy(model, x):
    work = copy.deepcopy(model).requires_grad_(False)
    bench = Workbench(work, QuantConfig(), [x])
    return work, fold_batch_norms(work, bench.graph, bench.sites)


def test_folding_is_exact_and_takes_only_exclusive_norms(net):
    work, names = folded_copy(net, images())
    assert names == ["bn1", "bn2", "bn3"]
    with torch.no_grad():
        torch.testing.assert_close(work(images()), net(images()), rtol=1e-5, atol=1e-5)
        x = torch.randn(2, 8, 5, 5)
        assert torch.equal(work.bn1(x), x)
    assert work.conv1.bias is not None and net.conv1.bias is None
    assert not torch.equal(work.conv1.weight, net.conv1.weight)


def test_a_shared_norm_is_left_alone(net):
    net.bn1.weight = net.bn_twice.weight
    assert folded_copy(net, images())[1] == ["bn2", "bn3"]


def test_escnet_is_the_same_function():
    model = codtdq.create_model("escnet-small")
    x = torch.rand(1, 3, 64, 64)
    work, names = folded_copy(model.eval(), x)
    assert len(names) > 10
    with torch.no_grad():
        for a, b in zip(_tensors(model(x)), _tensors(work(x)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(a.abs().max()))


@pytest.mark.parametrize("method", ["repq-vit", "ptq4vit-mse"])
def test_a_checkpoint_restores_folded_norms(net, method, tmp_path):
    config = config_for(method, fold_norms=True)
    model = codtdq.quantize(net, config, calibration=[images()], backend="reference")
    assert model.quant_record.notes["folded_batch_norms"] == 3
    codtdq.save(model, tmp_path / "q")
    again = codtdq.load(tmp_path / "q", model=Net(), backend="reference")
    with torch.no_grad():
        assert torch.equal(again(images()), model(images()))


def test_a_method_that_folds_not_is_as_before(net):
    model = codtdq.quantize(net, "smoothquant", calibration=[images()], backend="reference")
    assert "folded_batch_norms" not in model.quant_record.notes
    assert torch.equal(model.bn1.running_mean, net.bn1.running_mean)
    changed = codtdq.quantize(
        net, config_for("smoothquant", fold_norms=True), calibration=[images()], backend="reference"
    )
    assert changed.quant_record.notes["folded_batch_norms"] == 3


def test_methods_that_keep_weights_refuse(net):
    with pytest.raises(ConfigError, match="fold_norms"):
        codtdq.quantize(net, config_for("cod-tdq", fold_norms=True))


def test_methods_for_vision_transformers_fold():
    folding = {name for name in list_methods() if method_info(name).folds_norms}
    assert folding == {
        "ptq4vit",
        "ptq4vit-mse",
        "ptq4vit-per-channel",
        "repq-vit",
        "fima-q",
        "fima-q-init",
        "igq-vit",
        "igq-vit-12",
        "noisyquant",
        "noisyquant-ptq4vit",
        "orq-vit",
        "token-bitwidth",
    }


def _tensors(output):
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def test_the_engine_fuses_a_factor_of_one(net):
    work, _ = folded_copy(net, images())
    found = affine_of((work.bn1,))
    assert found is not None
    factor, offset = found
    torch.testing.assert_close(factor, torch.ones_like(factor), rtol=1e-7, atol=0)
    assert not offset.any()
