"""One network, one image, every instruction set of the machine: the same probabilities, bit by bit.

escnet-small has all that may differ: attention, norms, resized maps, and deformable convolutions,
whose products are float ones. What docs/native-engine.md shows of others is in the rows.
"""

import json
from pathlib import Path

import pytest
import torch

import codtdq
from codtdq.data import open_dataset
from codtdq.data.transforms import to_input
from codtdq.engine.cpu import library, unavailable_reason
from codtdq.evaluation.predict import mask_logits

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(unavailable_reason() is not None, reason="no native engine")
@pytest.mark.parametrize("method", ["cod-tdq", "w4a8"])
def test_masks_do_not_depend_on_the_instruction_set(method, tmp_path):
    scenes = open_dataset("camosynth/calib", limit=1)
    made = codtdq.quantize(codtdq.create_model("escnet-small"), method, calibration=scenes)
    codtdq.save(made, tmp_path / "made")
    info = made.info
    scene = open_dataset("camosynth/test-texture", limit=1)[0]
    x = to_input(scene.image, info.input_size, info.mean, info.std).unsqueeze(0)
    used, found = library.instruction_set(), {}
    try:
        for name in library.available_sets():
            library.select(name)
            found[name] = mask_logits(codtdq.load(tmp_path / "made", backend="cpu"), info, x)
    finally:
        library.select(used)
    assert "generic" in found
    best, *others = found
    differing = [name for name in others if not torch.equal(found[name], found[best])]
    assert differing == []


def test_the_rows_say_so():
    rows = json.loads((ROOT / "results" / "speed" / "identity.json").read_text())["identity"]
    assert {row["model"] for row in rows} >= {"escnet-small", "cfrn-small"}
    assert {row["set"] for row in rows} >= {"generic", "avx2"}
    assert all(row["identical"] == row["images"] and row["captured"] for row in rows)
