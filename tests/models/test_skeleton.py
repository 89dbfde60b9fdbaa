"""Networks that are built without values."""

import threading

import torch
from torch import nn

from codtdq.models.registry import build_model
from codtdq.models.skeleton import without_parameters


def test_parameters_have_shapes_but_no_memory_and_buffers_have_both():
    full, empty = build_model("cfrn-small"), build_model("cfrn-small", empty=True)
    assert all(p.is_meta for p in empty.parameters())
    assert [(n, p.shape) for n, p in empty.named_parameters()] == [
        (n, p.shape) for n, p in full.named_parameters()
    ]
    assert all(torch.equal(a, b) for a, b in zip(full.buffers(), empty.buffers()))


def test_other_threads_and_later_modules_are_left_alone():
    others = []
    with without_parameters():
        thread = threading.Thread(target=lambda: others.append(nn.Linear(2, 2)))
        thread.start(), thread.join()
        assert nn.Linear(2, 2).weight.is_meta
    assert not others[0].weight.is_meta and not nn.Linear(2, 2).weight.is_meta
