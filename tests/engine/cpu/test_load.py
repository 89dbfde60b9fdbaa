"""Load: many predictions from many threads on one model. Memory stays, results are serial ones."""

import subprocess
import sys

import pytest
from engine_cases import needs_engine

pytestmark = needs_engine

# In a process of its own, whose memory is only this. The first part warms up: arenas of the
# threads, programs of the shapes, what the C library keeps.
LOAD = """
import gc, resource, sys
from concurrent.futures import ThreadPoolExecutor
import torch
import codtdq

count, threads = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
model = codtdq.quantize(
    codtdq.create_model("cfrn-small"), "cod-tdq-plus" if sys.argv[3] == "plus" else "cod-tdq",
    calibration=[torch.randn(2, 3, 64, 64)], backend="cpu",
)
given = [torch.randn(1, 3, 64, 64 + 32 * (seed % 2)) for seed in range(16)]

def answer(index):
    with torch.inference_mode():
        return model.info.mask_logits(model(given[index % 16]))

wanted = [answer(index) for index in range(16)]

def call(index):
    return bool(torch.equal(answer(index), wanted[index % 16]))

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

different = 0
with ThreadPoolExecutor(threads) as pool:
    for part in range(10):
        different += sum(not same for same in pool.map(call, range(count // 10)))
        if part == 2:
            warm = resident()
print(different, (resident() - warm) // 2**20)
"""


def load(count, method="plus"):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", LOAD, str(count), "8", method],
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    different, grown = map(int, done.stdout.split())
    assert different == 0
    assert grown <= 16, f"memory grew by {grown} MiB"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_eight_threads_on_one_model():
    load(160, "paper")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("method", ["plus", "paper"])
@pytest.mark.timeout(3600)
def test_ten_thousand_predictions_from_eight_threads(method):
    load(10_000, method)
