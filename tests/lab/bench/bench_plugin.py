"""What a user's `--import` file may hold: a small network, and methods that go wrong on demand.

Switches are environment variables, so that worker processes see them too.
BENCH_TEST_SLOW: seconds that a forward pass takes longer. BENCH_TEST_TRACE: a folder that gets a
file per forward pass, named after Ray node and process; a pass waits until it holds a file "go".
BENCH_TEST_BROKEN: the methods below fail.
BENCH_TEST_SHARD: images per part.
"""

import os
import signal
import time
import uuid
from pathlib import Path

import torch
from torch import nn

from codtdq.declarations import Declaration
from codtdq.lab.bench import shard
from codtdq.methods import register_method
from codtdq.methods.registry import list_methods
from codtdq.models import list_models, register_model

MODEL = "test-bench"
list_methods()  # built-in methods come before those of a user


def leave_trace(folder):
    import ray

    node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "local"
    (folder / f"{node}.{os.getpid()}.{uuid.uuid4().hex}").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)


class Net(nn.Module):
    quantization = Declaration(roles={"stem": "first"})

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, x):
        if "BENCH_TEST_TRACE" in os.environ:
            leave_trace(Path(os.environ["BENCH_TEST_TRACE"]))
        time.sleep(float(os.environ.get("BENCH_TEST_SLOW", "0")))
        return self.head(torch.relu(self.stem(x)))


if MODEL not in list_models():

    @register_model(MODEL, description="for tests", input_size=32)
    def build():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Net()


ABOUT = {"title": "-", "source": "-", "evidence": "-", "ranges": "-", "granularity": "-"}


@register_method("test-fails", **ABOUT)
def fails(bench):
    if "BENCH_TEST_BROKEN" in os.environ:
        raise RuntimeError("two\nlines")


@register_method("test-dies", **ABOUT)
def dies(bench):
    if "BENCH_TEST_BROKEN" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)


if "BENCH_TEST_SHARD" in os.environ:
    shard.SHARD_IMAGES = int(os.environ["BENCH_TEST_SHARD"])
