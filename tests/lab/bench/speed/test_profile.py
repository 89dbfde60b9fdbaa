"""Where the time goes: headings, nesting and sums."""

import time

import torch
from torch import nn

from codtdq.lab.bench.speed.profile import (
    REST,
    label_of,
    leaf_labels,
    one_pass,
    run_profile,
    summed,
)


class Sleepy(nn.Module):
    def forward(self, x):
        time.sleep(0.02)
        return torch.sin(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 8)
        self.sleepy = Sleepy()

    def forward(self, x):
        x = self.second(self.first(self.first(x)))
        time.sleep(0.01)
        return torch.cat([self.sleepy(x), x], -1)


def test_labels_say_kind_and_shape():
    assert label_of(nn.Linear(3, 5)) == "linear 3->5"
    assert label_of(nn.Conv2d(4, 6, (1, 7), dilation=(1, 2))) == "conv 4->6 1x7 d2"
    assert label_of(nn.Conv2d(4, 4, 3, groups=4)) == "depthwise 4->4 3x3"
    assert label_of(nn.LayerNorm(3)) == "LayerNorm"


def test_a_pass_counts_leaves_and_the_functions_between_them():
    net = Net().eval()
    found = one_pass(net, torch.randn(2, 4), leaf_labels(net))
    # sin is part of a leaf, cat is not; the pause between them belongs to nobody
    assert found.calls == {"linear 4->4": 2, "linear 4->8": 1, "Sleepy": 1, "torch.cat": 1, REST: 1}
    assert found.seconds["Sleepy"] >= 0.02 and found.seconds[REST] >= 0.01
    assert not any(module._forward_hooks for module in net.modules())


def test_two_networks_side_by_side():
    rows = run_profile(Net().eval(), Net().eval(), torch.randn(2, 4), repeats=1)
    assert rows[0].what == "Sleepy" and rows[0].other_ms >= 20  # the largest first
    kinds = {row.what: row for row in summed(rows)}
    assert kinds["linear"].calls == 3 and set(kinds) == {"linear", "Sleepy", "torch.cat", REST}
    total = sum(row.other_ms for row in rows)
    assert abs(total - sum(row.other_ms for row in kinds.values())) < 1e-6


def test_fused_work_has_no_speed_up():
    class Fused(Net):
        def forward(self, x):
            return self.second(self.first(self.first(x)))

    rows = {r.what: r for r in run_profile(Net(), Fused(), torch.randn(2, 4), repeats=1)}
    assert rows["Sleepy"].other_ms == 0.0 and rows["Sleepy"].speedup is None
