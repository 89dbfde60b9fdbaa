"""The real libraries on a tiny network; named by hand: `pytest -m slow test_real_rivals.py`."""

import importlib.util

import pytest
import tiny_model
import torch
from torch import nn

from codtdq.lab.bench.speed.competitors import COMPETITORS, Bench
from codtdq.lab.bench.speed.hold_check import check_families
from codtdq.lab.bench.speed.latency import run_latency
from codtdq.lab.bench.speed.subjects import prepared

pytestmark = pytest.mark.slow
# how far from FP32 each may be on an image that it was not calibrated on
BOUNDS = {
    "torch-bf16": (1e-4, 0.02),
    "torch.compile": (0.0, 1e-5),
    "channels-last": (0.0, 1e-5),
    "onnxruntime": (0.0, 1e-5),
    "onnxruntime-int8": (0.0, 0.1),  # it has no linear layer
    "openvino": (0.0, 0.02),
    "openvino-f32": (0.0, 1e-5),
    "openvino-int8": (1e-4, 0.1),
    "openvino-int8-bf16": (1e-4, 0.1),
}


def needs(name):
    missing = [lib for lib in COMPETITORS[name].libraries if importlib.util.find_spec(lib) is None]
    if missing:
        pytest.skip(f"{name} needs {', '.join(missing)}: pip install 'codtdq[compare]'")


@pytest.mark.parametrize("name", COMPETITORS)
def test_it_computes_the_same_network(name, tiny):
    needs(name)
    with Bench(tiny.baseline, tiny.images(2), tiny.calibration(2)) as bench:
        found = bench.build(name, 1)
        if name == "openvino-int8-bf16" and "has no bf16" in found.reason:
            pytest.skip(found.reason)
        assert found.run is not None, found.reason
        low, high = BOUNDS[name]
        assert low <= found.difference <= high
        assert found.runtime.what.split()[0] in ("torch", "onnxruntime", "openvino")
        assert found.bytes is None or found.bytes > 900
        if "int8" in name and name.startswith("openvino"):
            assert "NNCF" in found.runtime.note and "4 images" in found.runtime.note
    assert set(BOUNDS) == set(COMPETITORS)


def test_all_of_them_are_timed_and_scored(engine):
    for name in COMPETITORS:
        needs(name)
    from codtdq.data import open_dataset

    with prepared(tiny_model.NAME, ["cod-tdq"], untrained=True, write_fp32=True) as subjects:
        subjects.trained = True
        scored = open_dataset("camosynth/val", limit=2)
        rows = run_latency(subjects, compare=["all"], seconds=0, accuracy=scored)["rows"]
    assert {row["candidate"] for row in rows} == {"fp32", "cod-tdq", *COMPETITORS}
    for row in rows:
        if "skipped" not in row:
            assert row["accuracy"]["images"] == 2 and row["weight_bytes"] > 0


def test_a_weight_that_two_layers_share_is_quantized_right():
    needs("onnxruntime-int8")

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(12, 12)
            self.wide = nn.Linear(12, 20)
            self.wide2 = nn.Linear(20, 12)

        def forward(self, x):
            x = self.wide2(self.wide(self.layer(x)))
            return self.wide2(self.wide(self.layer(x)))

    torch.manual_seed(0)
    with Bench(Tied().eval(), torch.randn(5, 12)) as bench:
        found = bench.build("onnxruntime-int8", 1)
    assert found.run is not None and 0 < found.difference < 0.1, found.reason


def test_switches_show_in_the_libraries():
    for name in ("onnxruntime", "openvino"):
        needs(name)
    found = check_families(["torch", "onnxruntime", "openvino"], "avx2")
    assert found["torch"]["held"] and found["openvino"]["held"], found
    if "nothing above" not in found["onnxruntime"]["evidence"]:
        assert "no switch" in found["onnxruntime"]["evidence"]
