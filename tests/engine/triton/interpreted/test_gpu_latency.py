"""The runtime table, with a clock that needs no device; the networks run in the interpreter."""

import json

import gpu_cases
import pytest
import tiny_model

from codtdq.cli import main
from codtdq.lab.bench.speed import gpu

pytestmark = gpu_cases.interpreted


class Meter:
    """The n-th network that is timed takes 12/n milliseconds a pass and n megabytes."""

    def __init__(self):
        self.networks, self.passes = 0, []

    def describe(self):
        return {"device": "a made-up device"}

    def reset(self):
        self.networks += 1

    def times(self, run, repeats):
        for _ in range(repeats):
            self.passes.append(run())
        return [12.0 / self.networks] * repeats

    def peak_bytes(self):
        return self.networks * 10**6


@pytest.fixture
def meter(monkeypatch):
    found = Meter()
    monkeypatch.setattr(gpu, "require_gpu", lambda: None)
    monkeypatch.setattr(gpu, "CudaMeter", lambda: found)
    return found


def test_the_table_of_the_paper(meter, capsys, tmp_path, shape_sized_blocks):
    out_file = tmp_path / "gpu.json"
    argv = [
        "bench",
        "latency",
        "--backend",
        "triton",
        "--model",
        tiny_model.NAME,
        "--untrained",
        "--repeats",
        "2",
        "--out",
        str(out_file),
    ]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "test-tiny, 32 x 32, a made-up device, weights random (untrained)" in out
    assert "peak memory MB" in out and "run by the Triton kernels" in out
    document = json.loads(out_file.read_text())
    rows = {row["candidate"]: row for row in document["rows"]}
    assert list(rows) == ["fp32", "w4a4", "cod-tdq"]  # the paper's networks, its batch of 4
    assert all(row["batch"] == 4 for row in rows.values())
    assert rows["fp32"]["ms_per_image"] == 3.0 and rows["cod-tdq"]["ms_per_image"] == 1.0
    assert rows["cod-tdq"]["speedup"] == 3.0 and rows["cod-tdq"]["images_per_second"] == 1000
    assert [row["peak_bytes"] for row in rows.values()] == [10**6, 2 * 10**6, 3 * 10**6]
    assert rows["fp32"]["execution"] == "torch" and rows["fp32"]["weight_bytes"] > 0
    assert rows["w4a4"]["execution"] == "native (triton, interpreted)"
    assert document["coverage"]["cod-tdq"]["of_quantized"] == 1.0
    assert document["coverage"]["cod-tdq"]["fallbacks"] == {}
    assert len(meter.passes) == 2 * 3 and meter.passes[0].shape == (4, 1, 32, 32)
    # the passes that were timed are those of the quantized networks
    assert not (meter.passes[0] == meter.passes[-1]).all()
