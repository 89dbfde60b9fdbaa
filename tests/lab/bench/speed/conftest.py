"""The tiny model of the evaluation tests, whether there is an engine to measure, and a rival."""

from pathlib import Path

import pytest
import tiny_model
import torch

from codtdq.engine.cpu import library
from codtdq.lab.bench.speed.competitors import COMPETITORS, Runtime
from codtdq.lab.bench.speed.competitors.registry import Entry
from codtdq.lab.bench.speed.subjects import prepared


@pytest.fixture
def engine():
    reason = library.unavailable_reason()
    if reason is not None:
        pytest.skip(f"no native engine: {reason}")


@pytest.fixture
def tiny(engine):
    """FP32, w4a4 and cod-tdq of the tiny model, with files."""
    with prepared(
        tiny_model.NAME, ["w4a4", "cod-tdq"], untrained=True, write_fp32=True
    ) as subjects:
        yield subjects


@pytest.fixture
def tiny_file():
    return Path(tiny_model.__file__)


@pytest.fixture
def fake_rival(monkeypatch):
    """A runtime whose logits are 1.5 times those of the network, in a file of 1000 bytes."""

    def build(network, threads):
        path = network.folder / "fake.bin"
        path.write_bytes(bytes(1000))

        def forward(images):
            with torch.inference_mode():
                return [1.5 * network.model(torch.as_tensor(images)).numpy()]

        return Runtime(
            lambda images: images.numpy(),
            forward,
            "fake 1.0",
            "int8",
            files=[path],
            note=f"on {network.calibration.source}",
        )

    monkeypatch.setitem(COMPETITORS, "fake", Entry(build, "torch"))
    return "fake"
