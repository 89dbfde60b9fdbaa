"""Counts and bytes that can be worked out by hand."""

import json

import pytest
import tiny_model
import torch
from torch import nn
from torch.nn import functional as F

import codtdq
from codtdq.engine import BackendRecord
from codtdq.errors import CheckpointError
from codtdq.lab.bench.speed.coverage import count_work, coverage_of
from codtdq.lab.bench.speed.storage import storage_split
from small_nets import simulate


class Toy(nn.Module):
    """8x8 images: every kind of product once, one operator twice, one never."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.linear = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 1000)

    def forward(self, x):
        x = self.grouped(self.conv(x))
        tokens = x.flatten(2).transpose(1, 2).unsqueeze(1)  # [B, 1, 64, 8]
        tokens = self.linear(self.linear(tokens))
        return F.scaled_dot_product_attention(tokens, tokens, tokens)


CONV, GROUPED, LINEAR = 64 * 8 * 27, 64 * 8 * 4 * 9, 2 * 64 * 8 * 8
ATTENTION = 2 * 64 * 64 * 8


def test_multiply_accumulates_of_every_operator():
    work = count_work(Toy().eval(), torch.randn(1, 3, 8, 8))
    assert work.operators == {"conv": CONV, "grouped": GROUPED, "linear": LINEAR}
    assert work.total == CONV + GROUPED + LINEAR + ATTENTION


def test_shares_count_what_ran_native():
    work = count_work(Toy().eval(), torch.randn(2, 3, 8, 8))
    record = BackendRecord("cpu", "", ("conv", "linear", "unused"), {"grouped": "in groups"})
    cover = coverage_of(work, {"conv", "grouped", "linear", "unused"}, record)
    assert (cover.operators, cover.quantized_operators, cover.native_operators) == (3, 3, 2)
    assert cover.native_macs == 2 * (CONV + LINEAR)
    assert cover.of_quantized == cover.of_operators == 2 / 3
    whole = CONV + GROUPED + LINEAR + ATTENTION
    assert cover.of_macs == pytest.approx((CONV + LINEAR) / whole)
    nothing = coverage_of(work, {"conv"}, BackendRecord("reference", ""))
    assert nothing.of_macs == nothing.of_quantized == 0.0


def test_every_byte_of_the_files_has_a_purpose(tmp_path):
    model = simulate(codtdq.create_model(tiny_model.NAME, pretrained=False), "cod-tdq")
    split = storage_split(codtdq.save(model, tmp_path / "packed"))
    assert split.total == sum(file.stat().st_size for file in (tmp_path / "packed").iterdir())
    assert split.packed_weights == 32 * 27 // 2 + 16
    assert split.row_padding == 32 // 2  # 27 weights take 14 bytes a row
    assert split.shapes == 4 * (4 + 3 + 4 + 3)
    assert split.weight_scales == 4 * (32 + 1)
    assert split.float_blocks == 32 + 1  # the biases
    assert split.activation_ranges == split.float_tensors == split.buffers == 0
    assert split.fp32 == 4 * (32 * 27 + 32 + 32 + 1)
    assert split.overhead == (split.weight_scales + split.metadata) / split.packed_weights


def test_fixed_ranges_and_tables_are_told_apart(tmp_path):
    model = codtdq.create_model(tiny_model.NAME, pretrained=False)
    images = [torch.randn(1, 3, 32, 32)]
    fixed = simulate(model, "per-tensor", images)
    split = storage_split(codtdq.save(fixed, tmp_path / "fixed"))
    assert split.activation_ranges == 2 * 4
    swin = simulate(codtdq.create_model("cfrn-small"), "cod-tdq")
    split = storage_split(codtdq.save(swin, tmp_path / "swin"))
    assert split.buffers > 0  # relative positions and shift masks
    assert split.total == sum(file.stat().st_size for file in (tmp_path / "swin").iterdir())
    plan = codtdq.plan(codtdq.create_model("cfrn-small"), "cod-tdq").totals()
    packed = split.packed_weights + split.row_padding
    assert packed + split.weight_scales == pytest.approx(
        plan["bits_per_weight"] / 8 * plan["quantized_parameters"]
    )


@pytest.mark.parametrize("method", ["cod-tdq-plus", "smoothquant"])
def test_every_method_has_a_table(method, tmp_path):
    model = codtdq.create_model(tiny_model.NAME, pretrained=False)
    done = simulate(model, method, [torch.randn(2, 3, 32, 32)])
    split = storage_split(codtdq.save(done, tmp_path / "packed"))
    assert split.total == sum(file.stat().st_size for file in (tmp_path / "packed").iterdir())
    packed = split.packed_weights + split.row_padding
    assert packed == 32 * 14 + 16  # the same codes, whoever chose them
    stored = 8 * (packed + split.weight_scales) / (32 * 27 + 32)
    assert stored == pytest.approx(done.quant_record.bits["weight"], abs=1e-3)
    assert split.float_blocks == 0 and split.float_tensors == 4 * (32 + 1)  # biases as they are


def test_half_precision_scales_take_half_the_bytes(tmp_path):
    model = codtdq.create_model(tiny_model.NAME, pretrained=False)
    split = storage_split(codtdq.save(simulate(model, "cod-tdq-literal"), tmp_path / "packed"))
    assert split.weight_scales == 2 * (32 + 1)
    assert split.float_tensors == 4 * (32 + 1)  # biases stay float32
    assert split.bare_overhead == (2 * 33 + split.shapes) / (32 * 27 // 2 + 16)


@pytest.mark.slow
def test_the_papers_setting_stores_the_papers_bytes(tmp_path):
    from codtdq.cli.main import main

    out = tmp_path / "storage.json"
    assert (
        main(["bench", "storage", "--setting", "paper", "--model", "cfrn", "--out", str(out)]) == 0
    )
    split = json.loads(out.read_text())["splits"]["cod-tdq-literal"]
    found = split["packed_weights"], split["weight_scales"], split["shapes"]
    assert found == (97_065_266, 326_632, 4_364)
    assert round(100 * split["bare_overhead"], 3) == 0.341


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no codtdq checkpoint"):
        storage_split(tmp_path)
