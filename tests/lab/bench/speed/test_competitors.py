"""Other runtimes: names, what a built one says, and what becomes of one that cannot run."""

import importlib.util
import os
import re
import signal
import time

import pytest
import torch
from torch import nn

from codtdq.environment import install_hint
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.lab.bench.speed import competitors
from codtdq.lab.bench.speed.competitors import (
    COMPETITORS,
    Bench,
    Calibration,
    Runtime,
    trial,
    with_openvino,
    with_torch,
)
from codtdq.lab.bench.speed.competitors import network as networks
from codtdq.lab.bench.speed.competitors.registry import Entry


class Branches(nn.Module):
    """Outputs as ESCNet has them: an edge, and a list of masks."""

    def forward(self, x):
        return x.mean(), [x[:, :1] * 2, x[:, 1:2] * 3]


@pytest.fixture
def images():
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_names_all_and_torch():
    assert competitors.expand(["all"]) == list(COMPETITORS)
    assert competitors.expand(["torch", "openvino", "openvino"]) == ["openvino"]
    assert {entry.family for entry in COMPETITORS.values()} == {"torch", "onnxruntime", "openvino"}
    wanted = "torch-bf16 torch.compile channels-last onnxruntime onnxruntime-int8"
    wanted += " openvino openvino-f32 openvino-int8 openvino-int8-bf16"
    assert set(wanted.split()) == set(COMPETITORS)
    competitors.check(["torch", "torch-bf16"])
    with pytest.raises(
        ConfigError, match=r"did you mean 'openvino-int8'\?\); accepted: all, torch"
    ):
        competitors.check(["openvino-int9"])


def test_missing_libraries_name_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    hint = re.escape(install_hint("compare"))
    with pytest.raises(UnsupportedError, match=rf"openvino-int8 needs .*nncf.*{hint}"):
        competitors.check(["channels-last", "openvino-int8"])
    with pytest.raises(UnsupportedError, match=hint):
        competitors.check(["all"])


def test_a_competitor_says_what_it_is(fake_rival, tiny):
    with Bench(tiny.baseline, tiny.images(1), tiny.calibration(1)) as bench:
        found = bench.build("fake", 1)
        assert found.runtime.what == "fake 1.0" and found.runtime.precision == "int8"
        assert found.runtime.note == "on 4 images of camosynth/calib"
        assert found.bytes == 1000 and found.build_seconds > 0
        # its logits are those of the network, times 1.5
        assert found.difference == pytest.approx(0.5, rel=1e-4)
        other = torch.randn(1, 3, 32, 32)
        expected = 1.5 * tiny.baseline(other)
        assert torch.allclose(found.logits(other), expected, atol=1e-5)


def test_masks_are_found_among_flat_outputs(images, monkeypatch):
    model = Branches().eval()
    model.info = networks.ModelInfo(
        name="b", description="", input_size=8, mask_logits=lambda outputs: outputs[1][-1]
    )
    flat = Runtime(
        lambda x: x.numpy(), lambda x: [x.mean(), x[:, :1] * 2, x[:, 1:2] * 3], "flat", "f32"
    )
    monkeypatch.setitem(COMPETITORS, "flat", Entry(lambda network, threads: flat, "torch"))
    short = Runtime(lambda x: x.numpy(), lambda x: [x], "short", "f32")
    monkeypatch.setitem(COMPETITORS, "short", Entry(lambda network, threads: short, "torch"))
    with Bench(model, images) as bench:
        found, broken = bench.build("flat", 1), bench.build("short", 1)
    assert found.difference == 0.0 and found.bytes is None  # ships the float checkpoint
    assert broken.run is None and "1 outputs, the network has 3" in broken.reason


def test_what_is_made_once_fails_once(images, tmp_path):
    network = networks.Network(Branches().eval(), images, tmp_path)
    tried = []

    def fail():
        tried.append(1)
        raise RuntimeError("no such\noperator")

    for _ in range(2):
        with pytest.raises(UnsupportedError, match="export failed: RuntimeError: no such operator"):
            network.once("export", fail)
    assert len(tried) == 1
    assert network.once("value", lambda: [3]) is network.once("value", lambda: [4])


def test_without_images_calibration_is_random_and_says_so(images, tmp_path):
    network = networks.Network(Branches().eval(), images, tmp_path)
    assert network.calibration.source == "4 random inputs"
    batches = with_openvino._batches(network.calibration, 2)
    assert len(batches) == 4 and batches[0].shape == images.shape
    with pytest.raises(UnsupportedError, match="no calibration batch has 5 images"):
        with_openvino._batches(Calibration([images], ""), 5)


def test_subjects_calibrate_others_on_our_images(tiny):
    found = tiny.calibration(3)
    assert found.source == "6 images of camosynth/calib"  # four of ours, in whole batches
    assert [len(batch) for batch in found.batches] == [3, 3]
    assert not torch.equal(next(iter(found.batches))[:1], tiny.images(1))


def test_bfloat16_runs_in_bfloat16(tiny, monkeypatch):
    asked = []
    monkeypatch.setattr(with_torch, "try_torch_bf16", lambda: asked.append(1))
    with Bench(tiny.baseline, tiny.images(1)) as bench:
        found = bench.build("torch-bf16", 1)
        again = bench.build("torch-bf16", 2)
        assert found.run().dtype == torch.bfloat16 and found.runtime.precision == "bf16"
        assert 0 < found.difference < 0.05 and again.difference == found.difference
        assert 2 * 929 < found.bytes < 4 * 929
    assert asked == [1]  # tried once, in a process of its own
    assert next(tiny.baseline.parameters()).dtype == torch.float32


def test_a_process_that_dies_is_a_reason():
    with pytest.raises(UnsupportedError, match="died of SIGILL"):
        trial.run_apart(f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})")
    with pytest.raises(UnsupportedError, match="failed: RuntimeError: no descriptor"):
        trial.run_apart("raise RuntimeError('no descriptor')")
    trial.run_apart("import sys; assert sys.argv[1:] == ['a', 'b']", "a", "b")


def test_a_process_that_never_ends_is_a_reason(monkeypatch):
    monkeypatch.setattr(trial, "TIMEOUT", 0.5)
    begin = time.perf_counter()
    with pytest.raises(UnsupportedError, match=r"not finish within 0\.5 seconds"):
        trial.run_apart("import time; time.sleep(60)")
    assert time.perf_counter() - begin < 30


def test_a_network_that_openvino_dies_of_is_not_run_here(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(with_openvino, "_stored", lambda *a, **k: tmp_path / "x.xml")
    killed = f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})"
    monkeypatch.setattr(trial, "OPENVINO", killed)
    with Bench(tiny.baseline, tiny.images(1)) as bench:
        found = bench.build("openvino-f32", 1)
        assert found.run is None
        missing = importlib.util.find_spec("openvino") is None
        assert ("No module" if missing else "died of SIGSEGV") in found.reason


def test_files_of_an_onnx_network(tmp_path):
    path = tmp_path / "n.onnx"
    path.write_bytes(b"12")
    assert networks.with_data(path) == (path,)
    path.with_name("n.onnx.data").write_bytes(b"345")
    assert sum(os.path.getsize(file) for file in networks.with_data(path)) == 5
