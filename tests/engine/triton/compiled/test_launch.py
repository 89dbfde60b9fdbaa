"""Launches: recorded instead of run, specialized as Triton would."""

import gpu_cases
import torch

from codtdq.engine.cpu.carry import Carriers
from codtdq.engine.cpu.products import Window
from codtdq.engine.triton import products, tables
from codtdq.engine.triton.launch import recorded
from codtdq.engine.triton.weights import GpuWeights
from codtdq.schemes.lowered import LoweredWeight

pytestmark = gpu_cases.compiled


def _launch(rows, channels):
    data = torch.empty(rows, channels, dtype=torch.int8, device="meta")
    weight = LoweredWeight(torch.zeros(64, 1, channels, dtype=torch.int8), torch.ones(64))
    with recorded() as launches:
        products.product(
            Carriers(data, torch.empty(rows, device="meta"), 1),
            GpuWeights.pack(weight, weight.factor),
            Window((1, 1, rows)),
            None,
            "none",
        )
    (launch,) = launches
    return launch


def test_types_constants_and_alignment():
    types, constants, attributes = _launch(100, 64).signature()
    assert types["data"] == "*i8" and types["unit"] == "*fp32" and types["rows"] == "i32"
    assert types["packed"] == "*u8" and types["BYTES"] == "constexpr"
    # an absent tensor becomes a constant, as at a real launch
    assert constants["multiplier"] is None and constants["bias"] is None
    names = _launch(100, 64).kernel.arg_names
    aligned = {names[place[0]] for place in attributes}
    assert "data" in aligned and "rows" not in aligned  # do_not_specialize


def test_shapes_share_a_variant():
    assert _launch(3000, 64).variant == _launch(5000, 64).variant
    assert _launch(3000, 64).variant != _launch(16, 64).variant  # another block


def test_a_table_takes_every_shape():
    for table in (tables.PRODUCT, tables.DEPTHWISE):
        assert tables.block_for(table, 1, 1) == table[-1][2]
        assert tables.block_for(table, 10**6, 10**4) == table[0][2]


def test_tuning_takes_the_fastest_and_remembers(monkeypatch):
    times = {block: 10.0 - i for i, (_, _, block) in enumerate(tables.PRODUCT)}
    ran = []
    monkeypatch.setattr(tables, "_milliseconds", lambda run: (run(), times[ran[-1]])[1])
    best = tables.tuned("key", tables.PRODUCT, ran.append)
    assert best == tables.PRODUCT[-1][2] and len(ran) == len(tables.PRODUCT)
    assert tables.tuned("key", tables.PRODUCT, ran.append) == best
    assert len(ran) == len(tables.PRODUCT)
