"""Every rule against torch: one operation, odd shapes, several layouts."""

import pytest
import torch
import torch.nn.functional as F
from program_cases import Applied, compare
from torch import nn

from codtdq.engine import cpu
from codtdq.engine.program.lowering import RULES
from codtdq.engine.program.program import Program
from codtdq.engine.program.traced import NotCapturable

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="no native engine")

CASES = {
    "add": lambda x: x + x.flip(3),
    "sub alpha": lambda x: torch.sub(x, x[:, :1], alpha=2.5),
    "mul broadcast": lambda x: x * x.mean((2, 3), keepdim=True),
    "div": lambda x: x / (x.abs() + 1),
    "rsub": lambda x: 1 - x,
    "constant": lambda x: x + torch.arange(x.shape[3]) * 2,
    "maximum": lambda x: torch.maximum(x, -x),
    "relu in place": lambda x: F.relu_(x + 1),
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": lambda x: torch.tanh(3 * x),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky": lambda x: F.leaky_relu(x, 0.2),
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "exp": torch.exp,
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: (x.abs() + 0.1).rsqrt(),
    "waves": lambda x: torch.sin(20 * x) + torch.cos(5 * x),
    "square": lambda x: x**2,
    "layer norm": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],)),
    "layer norm of two axes": lambda x: F.layer_norm(x, x.shape[2:]),
    "group norm": lambda x: F.group_norm(x, 2, torch.arange(1.0, 7.0), torch.ones(6)),
    "softmax": lambda x: x.softmax(-1),
    "softmax of channels": lambda x: x.softmax(1),
    "means": lambda x: x.mean((2, 3)),
    "sum": lambda x: x.sum(1, keepdim=True),
    "largest": lambda x: x.amax(1, keepdim=True),
    "length": lambda x: F.normalize(x, dim=1),
    "permuted view": lambda x: x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, x.shape[1]),
    "select and slice": lambda x: x[:, 2, 1:, ::2],
    "stack": lambda x: torch.stack([x, 2 * x], 1),
    "split": lambda x: torch.cat(x.split(2, 1)[::-1], 1),
    "unbind": lambda x: x.unbind(1)[2] + 1,
    "expand": lambda x: x[:, :1].expand(-1, 4, -1, -1) + 1,
    "repeat": lambda x: x.repeat(1, 2, 1, 3) * 1,
    "roll": lambda x: torch.roll(x, (2, -3), (2, 3)),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0), value=0.5),
    "reflect": lambda x: F.pad(x, (2, 1, 1, 3), mode="reflect"),
    "replicate": lambda x: F.pad(x, (2, 1, 1, 3), mode="replicate"),
    "bilinear": lambda x: F.interpolate(x, size=(13, 5), mode="bilinear"),
    "bilinear aligned": lambda x: F.interpolate(
        x, scale_factor=2, mode="bilinear", align_corners=True
    ),
    "nearest": lambda x: F.interpolate(x, size=(13, 5), mode="nearest"),
    "nearest exact": lambda x: F.interpolate(x, scale_factor=1.5, mode="nearest-exact"),
    "average": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average without margins": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "wide average": lambda x: F.avg_pool2d(x, 7, 1, 3),
    "average of one channel": lambda x: F.avg_pool2d(x[:, :1], 5, 1, 2, count_include_pad=False),
    "average as wide as the map": lambda x: F.avg_pool2d(x, (3, 10), 1),
    "maximum of neighbours": lambda x: F.max_pool2d(x[:, 1:2], (2, 3), 1, (1, 1)),
    "maximum of windows": lambda x: F.max_pool2d(x, 3, 2, 1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "grid sample": lambda x: F.grid_sample(
        x, 1.2 * torch.tanh(x[:, :2].permute(0, 2, 3, 1)), align_corners=False
    ),
    "pixel shuffle": lambda x: F.pixel_shuffle(x.repeat(1, 2, 1, 1), 2),
    "matrix product": lambda x: x.flatten(2) @ x.flatten(2).transpose(1, 2),
    "turned product": lambda x: x.flatten(2).transpose(1, 2) @ x.flatten(2),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.flatten(2)[:, None]] * 3),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_operation(name, batch):
    x = torch.randn(batch, 6, 9, 10, generator=torch.Generator().manual_seed(0))
    passes = ("epilogues", "in_place")
    assert compare(Applied(CASES[name]), x, passes=passes) < 5e-6
    # maps in channels-last order go another way through memory
    last = Applied(lambda x: CASES[name](F.conv2d(x, torch.eye(6)[:, :, None, None])))
    assert compare(last, x, passes=passes) < 5e-6


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(10, 33),
        nn.Conv2d(6, 17, 3, padding=1),
        nn.Conv2d(6, 40, 3, stride=2, padding=2, dilation=2, bias=False),
        nn.Conv2d(6, 70, 1),
        nn.Conv2d(6, 12, 3, groups=2, padding=1),
        nn.Conv2d(6, 6, 5, groups=6, padding=2),
        nn.Conv2d(6, 6, (7, 1), groups=6, padding=(3, 0), stride=2),
        nn.BatchNorm2d(6),
        nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 10)),
    ],
    ids=str,
)
def test_layer(layer):
    x = torch.randn(2, 6, 9, 10, generator=torch.Generator().manual_seed(1))
    assert compare(layer.eval(), x) < 5e-6


def test_conv1d():
    x = torch.randn(2, 6, 11, generator=torch.Generator().manual_seed(2))
    assert compare(nn.Conv1d(6, 9, 3, padding=1), x) < 5e-6


@pytest.mark.parametrize("passes", [(), ("epilogues",), ("in_place",), ("epilogues", "in_place")])
def test_residual_and_concatenation(passes):
    first, second = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)

    def forward(x):
        y = x + second(F.relu(first(x)))
        z = torch.cat([y, F.gelu(second(y)), x], 1)
        return {"all": z, "part": [z[:, 3:9] + 1, None, y]}

    x = torch.randn(2, 6, 8, 8, generator=torch.Generator().manual_seed(3))
    assert compare(Applied(forward), x, passes=passes) < 5e-6


def test_epilogues_vanish():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.GELU(), nn.Conv2d(8, 4, 1)
    )
    x = torch.randn(1, 3, 8, 8)
    assert "unary" not in Program(model, (x,), passes=("epilogues",)).kinds
    assert Program(model, (x,), passes=()).kinds.count("unary") == 2


def test_views_cost_nothing():
    model = Applied(lambda x: x.view(2, 3, 4).permute(2, 0, 1)[1:, :, None] + 1)
    assert Program(model, (torch.randn(6, 4),)).kinds == ["binary"]


def test_several_inputs_and_constant_outputs():
    model = Applied(lambda x, y: (x @ y, torch.ones(3), "text", 4))
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    program = Program(model, (x, y))
    product, ones, text, number = program(x, y)
    assert torch.allclose(product, x @ y, atol=1e-6) and (text, number) == ("text", 4)
    ones.zero_()
    assert program(x, y)[1].sum() == 3  # fresh tensors every time


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x if x.sum() > 0 else -x, "depends on values"),
        (lambda x: torch.linalg.qr(x)[0], "no instruction for aten.linalg_qr"),
        (lambda x: torch.zeros(3, 3).add_(x), "writes into a tensor"),
        (lambda x: x.double() * 2, "torch.float64"),
        (lambda x: torch.from_numpy(x.numpy()), "the recording failed"),
    ],
)
def test_what_cannot_be_captured_says_why(function, reason):
    with pytest.raises(NotCapturable, match=reason):
        Program(Applied(function), (torch.randn(3, 3),))


def test_stale_views_are_refused():
    def forward(x):
        y = x + 1
        part = y[:1]
        y.relu_()
        return part

    with pytest.raises(NotCapturable, match="has changed"):
        Program(Applied(forward), (torch.randn(3, 3),))


def test_rules_are_tested():
    """No rule without a name of torch behind it."""
    for name in RULES:
        if name.startswith("aten."):
            _, short, overload = name.split(".")
            assert overload in getattr(torch.ops.aten, short).overloads(), name
