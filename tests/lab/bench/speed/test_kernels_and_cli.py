"""Operators at the shapes of the networks, and the commands as a user types them."""

import json
from functools import partial

import pytest
import tiny_model
import torch
from torch import nn

import codtdq
from codtdq.environment import install_hint
from codtdq.errors import ConfigError
from codtdq.lab.bench.speed import competitors, kernels
from codtdq.models.cfrn import cfrn
from small_nets import simulate

TINY = ["--model", tiny_model.NAME, "--untrained", "--threads", "1", "--seconds", "0.1"]


@pytest.fixture
def run(run):
    """Call `codtdq bench`."""
    return partial(run, "bench")


@pytest.fixture
def small_shapes(engine, monkeypatch):
    monkeypatch.setattr(kernels, "QUANTIZER_SHAPES", ((64, 64),))
    monkeypatch.setattr(kernels, "LINEAR_SHAPES", ((64, 64, 32), (32, 64, 64)))
    monkeypatch.setattr(kernels, "CONV_SHAPES", ((32, 8),))
    monkeypatch.setattr(kernels, "CONV_DILATIONS", (1, 4))


def test_shapes_are_those_of_the_networks():
    assert len(kernels.LINEAR_SHAPES) == 16
    with torch.device("meta"):
        network = cfrn()
    dense = {
        (module.in_channels, module.dilation[0])
        for module in network.modules()
        if isinstance(module, nn.Conv2d)
        and module.kernel_size == (3, 3)
        and module.groups == 1
        and module.in_channels > 32
    }
    sides = dict(kernels.CONV_SHAPES)
    assert dense == {(width, dilation) for width in sides for dilation in kernels.CONV_DILATIONS}
    assert all(width * side == 128 * 96 for width, side in sides.items())
    linears = {
        (module.in_features, module.out_features)
        for module in network.modules()
        if isinstance(module, nn.Linear)
    }
    assert {shape[1:] for shape in kernels.LINEAR_SHAPES[:12]} <= linears


def test_rows_take_the_faster_layout_and_means_are_geometric(small_shapes):
    result = kernels.run_kernels(seconds=0)
    kinds = ["quantizer-max", "quantizer", "quantizer-reference", *["linear"] * 2, *["conv"] * 2]
    assert [row["kind"] for row in result["rows"]] == kinds
    conv = result["rows"][-1]
    assert set(conv["all"]) == {
        f"{side} {layout}" for side in ("fp32", "int4") for layout in ("nchw", "channels_last")
    }
    for side in ("fp32", "int4"):
        times = [conv["all"][key]["wall_ms"]["median"] for key in conv["all"] if side in key]
        assert conv[side]["wall_ms"]["median"] == min(times)
    first, second = (row["speedup"]["median"] for row in result["rows"][3:5])
    (mean,) = (mean for mean in result["means"] if mean["kind"] == "linear")
    assert mean["speedup"] == pytest.approx((first * second) ** 0.5) and mean["shapes"] == 2


def carried(x):
    """The values of carriers that have a unit per token."""
    return x.data.float() * x.unit.unsqueeze(1)


def test_candidates_compute_what_they_should(small_shapes):
    for kind in kernels.KINDS:
        for case in kernels._cases(kind, None):
            with torch.inference_mode():
                outputs = [run() for run in (*case.baselines.values(), *case.natives.values())]
            if kind in ("quantizer-max", "quantizer"):
                (codes, step), native = outputs
                exact, found = (codes * step).flatten(1), carried(native)
                # float steps there, whole multiples of one per token here
                assert (found - exact).norm() < 0.2 * exact.norm()
            elif kind == "quantizer-reference":
                exact, found = outputs[0].x_hat, carried(outputs[1])
                assert (found - exact).norm() < 0.2 * exact.norm()
            else:
                exact, native = outputs[0], outputs[-1]
                error = float((native - exact).norm() / exact.norm())
                assert 0.01 < error < 0.5  # four bits: near, but not float


def test_kernels_command(small_shapes, run):
    code, out, _ = run("kernels", "--only", "linear,quantizer", "--threads", 1, "--seconds", 0)
    assert code == 0 and "64x64x32" in out and "geometric means" in out and "\nconv" not in out
    with pytest.raises(ConfigError, match="accepted: quantizer-max, quantizer, quantizer-ref"):
        kernels.run_kernels(kinds=["bmm"])


def test_latency_command_in_all_formats(engine, run, tmp_path):
    out_file = tmp_path / "latency.json"
    code, out, err = run("latency", *TINY, "--methods", "cod-tdq", "--profile", "--out", out_file)
    assert code == 0 and err == ""
    assert "weights random (untrained)" in out and "native" in out
    assert "where the time goes" in out and "100.00% (2/2)" in out
    document = json.loads(out_file.read_text())
    assert document["machine"]["cores"] >= 1 and len(document["rows"]) == 2
    assert document["profile"]["method"] == "cod-tdq"
    code, out, _ = run("latency", *TINY, "--methods", "w4a4", "--format", "markdown")
    assert code == 0 and "| candidate | batch |" in out and "| :--- |" in out
    code, out, _ = run("latency", *TINY, "--methods", "w4a4", "--json")
    assert {row["candidate"] for row in json.loads(out)["rows"]} == {"fp32", "w4a4"}


def test_skipped_competitors_are_lines_of_the_table(engine, run, monkeypatch):
    monkeypatch.setattr(competitors, "check", lambda names: None)
    monkeypatch.setattr(
        competitors.Bench, "build", lambda *a: competitors.Competitor(None, reason="it cannot")
    )
    code, out, _ = run("latency", *TINY, "--methods", "w4a4", "--compare", "openvino")
    assert code == 0
    assert any("openvino" in line and "it cannot" in line for line in out.splitlines())


def test_storage_command(engine, run, tmp_path):
    network = TINY[:3]
    code, out, _ = run("storage", *network, "--methods", "w4a4,cod-tdq")
    assert code == 0 and "packed weights" in out and "448" in out
    model = simulate(codtdq.create_model(tiny_model.NAME, pretrained=False), "cod-tdq")
    codtdq.save(model, tmp_path / "packed")
    code, out, _ = run("storage", "--packed", tmp_path / "packed", "--json")
    (split,) = json.loads(out)["splits"].values()
    assert split["total"] == sum(file.stat().st_size for file in (tmp_path / "packed").iterdir())


def test_wrong_input_is_one_line(engine, run, tmp_path, monkeypatch):
    out_file = tmp_path / "no.json"
    wrong = [
        ["latency", *TINY, "--threads", "999"],
        ["latency", *TINY, "--compare", "tensorrt"],
        ["latency", *TINY, "--methods", "nothing"],
        ["latency", "--model", "cfrn"],
        ["latency", *TINY, "--batch", "0"],
        ["kernels", "--only", "bmm"],
        ["storage", "--packed", tmp_path / "nowhere"],
        ["deployment", "--checkpoint", "cfrn.pth"],
    ]
    for argv in wrong:
        code, out, err = run(*argv, "--out", out_file)
        assert code == 2 and out == "" and len(err.splitlines()) == 1, (argv, err)
    assert not out_file.exists()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = run("latency", *TINY, "--compare", "onnxruntime")
    assert code == 2 and f"not installed: {install_hint('compare')}" in err


def test_deployment_command(engine, run, monkeypatch):
    from codtdq.lab.bench.speed import fresh_process

    fake = dict.fromkeys(fresh_process.FIELDS, 1e6)
    monkeypatch.setattr(fresh_process, "run_child", lambda settings: fake)
    named = ["--models", tiny_model.NAME, *TINY[2:], "--methods", "cod-tdq-plus"]
    code, out, _ = run("deployment", *named, "--batch", 1)
    assert code == 0 and "peak memory MB" in out and "overhead of DSTG" in out
    assert "cod-tdq-plus" in out  # the flagship by its name, beside the paper's settings
    assert "native of multiply-accumulates" in out and "448 bytes" in out
