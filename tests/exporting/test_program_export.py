"""`codtdq export --to program`: every method and network, and what it refuses."""

import json

import numpy as np
import pytest
import torch
from checkpoints import IMAGE, tiny
from engine_cases import SETS, instruction_set, needs_engine
from torch import nn

import codtdq
from codtdq.cli import main
from codtdq.engine.cpu.carriers import CarrierWeights
from codtdq.exporting.stream import encoded
from codtdq.runtime import Runtime

pytestmark = needs_engine
NATIVE = ("cod-tdq", "cod-tdq-plus", "w8a8", "dcrp-only-fixed", "float")


@pytest.mark.parametrize("method", NATIVE)
def test_methods_of_the_engine_leave_torch(tmp_path, method):
    """Bit for bit what the captured program gives, of a small network with every kind of layer."""
    model = tiny()
    if method != "float":
        model = codtdq.quantize(model, method, calibration=[IMAGE] * 2, backend="cpu")
    model.info = codtdq.models.registry.ModelInfo(
        name="tiny", description="", input_size=6, size_multiple=1
    )
    done = codtdq.export(model, tmp_path / "net.codtdq")
    found = Runtime(done.path).run(IMAGE.numpy())
    assert np.array_equal(found, codtdq.compile(model, IMAGE)(IMAGE).numpy())
    assert done.bytes == done.path.stat().st_size and sum(done.operators.values()) > 5


@pytest.mark.parametrize("method", ["arcquant", "smoothquant-static"])
def test_methods_that_are_simulated_say_so_in_one_line(tmp_path, method):
    model = codtdq.quantize(tiny(), method, calibration=[IMAGE] * 2)
    with pytest.raises(codtdq.CodtdqError, match=r"only simulated|cannot leave torch") as caught:
        codtdq.export(model, tmp_path / "net.codtdq", input_size=32)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 1, 3), (33, 9, 16), (64, 1, 100), (17, 3, 96)])
def test_unpacking_gives_what_was_packed(name, bits, shape):
    draw = torch.Generator().manual_seed(0)
    low, high = (-8, 7) if bits == 4 else (-127, 127)
    codes = torch.randint(low, high + 1, shape, generator=draw, dtype=torch.int8)
    factor = torch.randn(shape[0], generator=draw)
    with instruction_set(name):
        for group in (None, 16, 32) if bits == 4 else (None,):
            p = None
            if group is not None:
                groups = -(-shape[2] // group) if group < shape[2] else 1
                p = torch.randint(1, 16, (*shape[:2], groups), generator=draw)
                p = (p * torch.where(torch.rand(p.shape, generator=draw) < 0.4, -1, 1)).char()
            weights = CarrierWeights.pack(codes, factor, p, group=group, bits=bits)
            found = weights.unpack()
            assert torch.equal(found[0], codes) and torch.equal(found[1], factor)
            assert (found[2] is None) == (p is None) and (p is None or torch.equal(found[2], p))


def test_streams_of_numbers():
    assert encoded([0, -1, 1, 63, -64]) == bytes([0, 1, 2, 126, 127])
    assert encoded([64]) == bytes([128, 1])
    assert len(encoded([2**63 - 1, -(2**63)])) == 20


def test_the_command_writes_a_file_and_says_what_is_in_it(tmp_path, capsys):
    out = tmp_path / "net.codtdq"
    words = ["export", "cfrn-small", "--method", "cod-tdq", "--to", "program", "--out", str(out)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "cfrn-small, cod-tdq" in shown and "bytes of memory for a run" in shown
    assert "carrier_product 98" in shown
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == out.stat().st_size
    (shape,) = Runtime(out).shapes
    assert told["programs"] == [{"input": [1, 3, 160, 160], "arena_bytes": shape.arena_bytes}]


def test_a_quantized_directory_is_exported_as_it_is(tmp_path, capsys):
    model = codtdq.quantize(codtdq.create_model("escnet-small"), "cod-tdq")
    codtdq.save(model, tmp_path / "packed")
    out = str(tmp_path / "net.codtdq")
    assert main(["export", str(tmp_path / "packed"), "--out", out]) == 0
    assert Runtime(out).info["method"] == "cod-tdq"
    assert main(["export", str(tmp_path / "packed"), "--method", "cod-tdq", "--out", out]) == 2
    assert "quantized already" in capsys.readouterr().err


def test_an_operator_without_a_rule_is_named_in_one_line(tmp_path):
    class Sorted(nn.Module):
        def forward(self, x):
            return torch.cumsum(x, 1)[:, :1]

    with pytest.raises(codtdq.CodtdqError) as caught:
        codtdq.export(Sorted().eval(), tmp_path / "net.codtdq", input_size=32)
    assert str(caught.value) == "no instruction for aten.cumsum.default"
    assert not (tmp_path / "net.codtdq").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cfrn-small", "--float", "--method", "cod-tdq"], "--float keeps a model as it is"),
        (["cfrn-small", "--float", "--size", "33", "64"], "takes multiples of 32"),
        (["cfrn-small", "--method", "cod-tdq", "--batch", "2"], "share one dynamic range"),
        (["cfrn", "--float"], "no weights of cfrn come with the package"),
        (["no-such-folder/x"], "does not exist"),
    ],
)
def test_wrong_wishes_are_one_line(tmp_path, capsys, words, message):
    assert main(["export", *words, "--out", str(tmp_path / "net.codtdq")]) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cfrn", "escnet", "escnet-v2"])
def test_the_networks_of_the_paper_leave_torch(tmp_path, name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = codtdq.create_model(name, pretrained=False)
    size = sum(one.numel() for one in model.parameters()) * 4
    model = codtdq.quantize(model, codtdq.config("cod-tdq", model=model), backend="cpu")
    done = codtdq.export(model, tmp_path / "net.codtdq")
    assert done.bytes < size / 5
    image = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    found, wanted = Runtime(done.path).predict(image), codtdq.predict(model, image)
    assert np.abs(found.astype(int) - np.asarray(wanted)).max() <= 1
