"""Launches: recorded instead of run, specialized as Triton would."""

import gpu_cases
import torch

from codtdq.engine.triton import encoders, tables
from codtdq.engine.triton.launch import recorded
from codtdq.numerics.spec import ActivationSpec

pytestmark = gpu_cases.compiled


def _launch(rows, channels):
    with recorded() as launches:
        encoders.encode_groups(torch.empty(rows, channels, device="meta"), ActivationSpec())
    (launch,) = launches
    return launch


def test_types_constants_and_alignment():
    types, constants, attributes = _launch(100, 64).signature()
    assert types["x"] == "*fp32" and types["codes"] == "*i8" and types["rows"] == "i32"
    assert types["c1"] == "fp32" and types["GROUP"] == "constexpr"
    # a stride of 1 and an absent tensor become constants, as at a real launch
    assert constants["channel_stride"] == 1 and constants["zero"] is None
    names = _launch(100, 64).kernel.arg_names
    aligned = {names[place[0]] for place in attributes}
    assert "code_stride" in aligned and "rows" not in aligned  # do_not_specialize


def test_shapes_share_a_variant():
    assert _launch(3000, 64).variant == _launch(5000, 64).variant
    assert _launch(3000, 64).variant != _launch(16, 64).variant  # another block


def test_a_table_takes_every_shape():
    for table in (tables.PRODUCT, tables.SHARED_PRODUCT, tables.FUSED, tables.DEPTHWISE):
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
