"""Networks that are built without values."""

import subprocess
import sys
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


def test_no_initial_value_is_computed():
    """Not even for its shape, which would import torch's compiler: seconds, for a small file."""
    code = (
        "import sys, torch\n"
        "from codtdq.models import build_model\n"
        "from codtdq.models.skeleton import without_parameters\n"
        "with without_parameters():\n"
        "    model = build_model('escnet-small')\n"
        "    kept = torch.zeros(3).fill_(2.0)\n"
        "assert next(model.parameters()).is_meta and kept.sum() == 6\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
