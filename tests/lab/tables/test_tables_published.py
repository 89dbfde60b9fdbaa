"""The transcribed numbers of the paper, and when they may be shown."""

from collections import Counter

import fixture_results as fixture
import pytest

from codtdq.errors import DataError
from codtdq.lab.tables import build_tables, published
from codtdq.lab.tables.catalogue import OURS
from codtdq.lab.tables.published import check_comparable, published_entry
from codtdq.lab.tables.results import Results

METRICS = ("S", "wF", "E_mean", "F_max", "MAE")
KNOWN = [  # table, model, data set, method, five numbers, read off the paper
    ("1", "cfrn", "NC4K", "w4a8", (0.882, 0.841, 0.936, 0.872, 0.032)),
    ("2", "cfrn", "CAMO", "smoothquant", (0.397, 0.118, 0.526, 0.321, 0.140)),
    ("2", "cfrn", "CHAMELEON", "arcquant", (0.593, 0.464, 0.619, 0.572, 0.096)),
    ("2", "cfrn", "COD10K", "token-bitwidth", (0.480, 0.073, 0.544, 0.259, 0.084)),
    ("2", "cfrn", "NC4K", "cod-tdq", (0.837, 0.747, 0.884, 0.817, 0.052)),
    ("3", "escnet", "NC4K", "fima-q", (0.748, 0.662, 0.821, 0.710, 0.078)),
    ("4", "cfrn", "NC4K", "dstg-only", (0.451, 0.180, 0.532, 0.241, 0.270)),
    ("4", "cfrn", "NC4K", "dcrp-attn", (0.435, 0.174, 0.504, 0.228, 0.307)),
    ("4", "escnet", "NC4K", "dcrp-only", (0.771, 0.684, 0.805, 0.744, 0.062)),
    ("S2", "escnet", "CHAMELEON", "ptq4sam", (0.6550, 0.6108, 0.6952, 0.7685, 0.0956)),
    ("S2", "escnet", "COD10K", "cod-tdq", (0.8539, 0.7786, 0.9252, 0.8120, 0.0245)),
]


def entries(**wanted):
    return [e for e in published()["entries"] if all(e[k] == v for k, v in wanted.items())]


def test_every_row_of_the_papers_tables_is_there_once():
    data = published()
    counts = Counter(entry["table"] for entry in data["entries"])
    assert counts == {"1": 4, "2": 18 * 4, "3": 13, "4": 2 * 5, "S2": 14 * 4}
    keys = [(e["table"], e["model"], e["dataset"], e["method"]) for e in data["entries"]]
    assert len(set(keys)) == len(keys) and len(data["gains"]) == 8
    for entry in data["entries"]:
        assert entry["model"] in data["models"] and entry["dataset"] in data["datasets"]
        assert all(0 < entry[metric] < 1 for metric in METRICS)


@pytest.mark.parametrize(("table", "model", "dataset", "method", "numbers"), KNOWN)
def test_known_values(table, model, dataset, method, numbers):
    (entry,) = entries(table=table, model=model, dataset=dataset, method=method)
    assert tuple(entry[metric] for metric in METRICS) == numbers


def test_tables_that_print_the_same_cell_agree_within_rounding():
    pairs = 0
    for entry in published()["entries"]:
        for other in entries(**{k: entry[k] for k in ("model", "dataset", "method")}):
            pairs += other is not entry
            assert all(abs(entry[m] - other[m]) <= 0.0005 + 1e-9 for m in METRICS)
    # 1-2, 1-4 (naive), 2-4 (naive, ours), 3-S2, 3-4 (ours), 4-S2 (naive, ours), both ways
    assert pairs == 2 * (4 + 1 + 2 + 13 + 1 + 2)


def test_gain_table_is_the_difference_of_the_other_tables():
    for row in published()["gains"]:
        table = {"cfrn": "2", "escnet": "S2"}[row["model"]]
        here = entries(table=table, model=row["model"], dataset=row["dataset"])
        rivals = [e for e in here if e["method"] not in OURS | {"fp32", "w8a8", "w4a8"}]
        best = max(e["S"] for e in rivals)
        assert sorted(e["method"] for e in rivals if e["S"] == best) == sorted(row["baselines"])
        (ours,) = [e for e in here if e["method"] == "cod-tdq"]
        assert (row["baseline_S"], row["S"]) == (best, ours["S"])
        assert row["gain"] == pytest.approx(ours["S"] - best, abs=1e-9)


def test_the_finer_table_is_shown():
    assert published_entry("escnet", "NC4K", "repq-vit")["S"] == 0.8182
    assert published_entry("escnet", "NC4K", "dstg-only")["table"] == "4"
    assert published_entry("escnet", "NC4K", "smoothquant") is None


def test_beside_ours_only_for_the_papers_model_and_data():
    tables = build_tables(Results(tuple(fixture.paper_rows())), "main", with_published=True)
    record = next(r for r in tables[0].records if (r["method"], r["dataset"]) == ("w4a4", "NC4K"))
    assert record["S_published"] == 0.443 and record["F_max_published"] == 0.348
    assert record["published_table"] == "2" and record["S"] != record["S_published"]
    own = next(r for r in tables[0].records if r["method"] == "my-own")
    assert own["S_published"] is None
    assert any("FP32, ours minus the paper's" in note for note in tables[0].notes)
    plain = build_tables(Results(tuple(fixture.paper_rows())), "main")[0]
    assert not any("published" in key for key in plain.records[0])


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (fixture.row("cfrn-small", dataset="NC4K", images=4121), "model cfrn-small"),
        (fixture.row("cfrn", dataset="camosynth/val"), "data set camosynth/val"),
        (fixture.row("cfrn", dataset="CAMO", images=20, limit=20), "20 of the 250 images of CAMO"),
        (fixture.row("cfrn", dataset="CAMO", images=250, stress="outliers"), "planted outlier"),
    ],
)
def test_refused_where_one_row_is_not_the_papers(wrong, named):
    right = fixture.row("escnet", dataset="CAMO", images=250)
    check_comparable([right])
    with pytest.raises(DataError, match=named) as caught:
        check_comparable([right, wrong])
    assert "cfrn and escnet" in str(caught.value) and "\n" not in str(caught.value)
