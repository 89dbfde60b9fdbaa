"""Folders for a hub: what the card says, what comes back, what is fetched and what is refused."""

from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import codtdq
from codtdq.errors import CheckpointError, ConfigError, UnsupportedError
from small_nets import images, small_net


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    model = codtdq.create_model("escnet-small")
    quantized = codtdq.quantize(model, "cod-tdq", backend="reference")
    return codtdq.save_pretrained(
        quantized,
        tmp_path_factory.mktemp("hub") / "escnet-w4a4",
        metrics={"CAMO": {"S": 0.81234, "count": 250}, "NC4K": {"S": 0.9, "MAE": 0.05}},
        licence="mit",
        weights_from="this package",
    )


def test_the_card_has_the_facts_of_the_record(folder: Path):
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "codtdq.json",
        next(folder.glob("model-*.safetensors")).name,
    ]
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\nlibrary_name: codtdq\n")
    size = sum(p.stat().st_size for p in folder.iterdir() if p.name != "README.md") / 2**20
    for line in (
        "# escnet-small, cod-tdq",
        "| method | COD-TDQ (`cod-tdq`) |",
        "| bits per weight, scales included | 4.22 |",
        "| operators in low bits | 250 of 257 |",
        f"| size | {size:.2f} MiB |",
        "| calibration | none |",
        "| licence of the weights | mit |",
        "| data set | S | count | MAE |",
        "| CAMO | 0.8123 | 250 |  |",
        "| NC4K | 0.9000 |  | 0.0500 |",
    ):
        assert line in card.splitlines(), line


def test_a_folder_gives_the_same_model_again(folder: Path):
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    ways = (codtdq.from_pretrained, codtdq.load)
    first, again = (way(folder, backend="reference") for way in ways)
    with torch.no_grad():
        assert torch.equal(first(image)[1][-1], again(image)[1][-1])


def test_a_calibrated_model_of_one_s_own(tmp_path: Path):
    net = small_net()
    quantized = codtdq.quantize(net, "cod-tdq-plus", calibration=[images(4)], backend="reference")
    out = codtdq.save_pretrained(quantized, tmp_path / "own", calibration="noise | of mine")
    card = (out / "README.md").read_text()
    assert "| calibration | 4 images: noise \\| of mine |" in card
    assert "license: unknown" in card and "| licence of the weights | not stated |" in card
    assert "No scores were given" in card and "model=float_model" in card
    assert isinstance(codtdq.from_pretrained(out, model=net, backend="reference"), nn.Module)


def test_what_cannot_be_saved_or_loaded(tmp_path: Path, monkeypatch):
    with pytest.raises(ConfigError, match="is not quantized"):
        codtdq.save_pretrained(small_net(), tmp_path / "float")
    with pytest.raises(CheckpointError, match="no such folder"):
        codtdq.from_pretrained("not/a/folder")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnsupportedError, match="run pip install 'huggingface_hub"):
        codtdq.from_pretrained("someone/something")


def test_a_licence_that_would_break_the_card_is_refused(folder: Path, tmp_path: Path):
    model = codtdq.load(folder, backend="reference")
    with pytest.raises(ConfigError, match="licence is"):
        codtdq.save_pretrained(model, tmp_path / "x", licence="mit\ntags: [x]")


def test_a_hub_name_fetches_safetensors_json_and_card_only(folder: Path, tmp_path, monkeypatch):
    asked = {}

    def snapshot_download(name, *, revision=None, allow_patterns=None):
        asked.update(name=name, revision=revision, patterns=allow_patterns)
        if name.startswith("away/"):
            raise ConnectionError("no route\nto the hub")
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(folder, copy)
        if name.startswith("pickled/"):
            next(copy.glob("model-*.safetensors")).rename(copy / "model.bin")
        return str(copy)

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    model = codtdq.from_pretrained("me/escnet-w4a4", revision="v1", backend="reference")
    assert model.info.name == "escnet-small"
    assert asked == {
        "name": "me/escnet-w4a4",
        "revision": "v1",
        "patterns": ["model-*.safetensors", "codtdq.json", "README.md"],
    }
    with pytest.raises(CheckpointError, match=r"has no model-\*\.safetensors"):
        codtdq.from_pretrained("pickled/model")
    with pytest.raises(CheckpointError, match="cannot be fetched from the hub"):
        codtdq.from_pretrained("away/model")
