"""Every published number against the rows and sentences of the paper's source."""

import re
from collections import Counter
from pathlib import Path

import pytest

from codtdq.lab.tables import published
from codtdq.lab.tables.catalogue import ABLATION
from codtdq.lab.tables.published import published_rows, stated

SCORES = ("S", "wF", "E_mean", "F_max", "MAE")
DATASETS = ("CAMO", "CHAMELEON", "COD10K", "NC4K")
MARKUP = re.compile(r"\\(?:textbf|underline|texttt|textit)\{([^{}]*)\}")
NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+\.\d+|\.\d+|\d+)(?![\w.]*\w)")


def source():
    """Label -> lines, as they stand in the paper."""
    found, label = {}, None
    for line in Path(__file__).with_name("paper_source.txt").read_text("utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            label = found.setdefault(line[1:-1], [])
        elif line and not line.startswith("#"):
            label.append(line)
    return found


SOURCE = source()


def bare(text):
    before = None
    while before != text:
        before, text = text, MARKUP.sub(r"\1", text)
    return re.sub(r"~?\\cite\{[^}]*\}", "", text).replace(r"\_", "_").strip()


def number(cell):
    text = bare(cell)
    power = re.fullmatch(r"\\\((-?[\d.]+)\\times 10\^\{(-?\d+)\}\\\)", text)
    if power:
        return float(f"{power[1]}e{power[2]}")
    return float(text.removesuffix(r"$\times$"))


def numbers_in(sentence):
    text = re.sub(r"\\(?:cref|cite|eqref|label)\{[^}]*\}|Eq\.~|\\[a-zA-Z]+", " ", sentence)
    text = re.sub(r"10\^\{(-\d+)\}", r" \1 ", text)
    text = re.sub(r"[–${}]", " ", text)
    return [float(found.replace(",", "")) for found in NUMBER.findall(text.replace("+", " "))]


def cells(table):
    label = published()["tables"][table]["label"]
    return [[cell.strip() for cell in line.split("&")] for line in SOURCE[label]]


def test_the_tables_are_numbered_as_they_come():
    tables = published()["tables"]
    assert list(tables) == ["1", "2", "3", "4", "5", *(f"S{n}" for n in range(1, 11))]
    assert [entry["label"] for entry in tables.values()] == [k for k in SOURCE if "tab:" in k]
    assert tables["S2"]["label"] == "tab:escnet_w4a4_full"
    assert tables["S10"]["label"] == "tab:supp_operator_inventory"


@pytest.mark.parametrize("table", ["2", "S2"])
def test_tables_over_four_data_sets(table):
    entries = published_rows("entries", table=table)
    lines = cells(table)
    assert len(entries) == 4 * len(lines)
    for line in lines:
        here = [e for e in entries if e["printed"] == bare(line[0])]
        assert [e["dataset"] for e in here] == list(DATASETS)
        assert [e[m] for e in here for m in SCORES] == [number(c) for c in line[1:]]


@pytest.mark.parametrize(("table", "model"), [("1", "cfrn"), ("4", "cfrn"), ("4", "escnet")])
def test_tables_of_one_data_set(table, model):
    entries = published_rows("entries", table=table, model=model)
    lines = cells(table)
    if table == "4":  # two tables side by side: CFRN, then ESCNet
        lines = lines[:5] if model == "cfrn" else lines[5:]
    assert [[e["printed"], *(e[m] for m in SCORES)] for e in entries] == [
        [bare(line[0]), *map(number, line[1:])] for line in lines
    ]


def test_table_3_has_methods_across():
    entries = published_rows("entries", table="3")
    for metric, line in zip(SCORES, cells("3"), strict=True):
        assert [entry[metric] for entry in entries] == [number(cell) for cell in line[1:]]


@pytest.mark.parametrize(
    ("part", "table", "fields", "count"),
    [
        ("runtime", "5", ("weight_mb", "images_per_second", "ms_per_image", "peak_mb"), 24),
        ("storage", "S1", ("fp32_mb", "packed_mb", "ratio"), 6),
        ("weight_statistics", "S3", ("mean", "std", "p99", "absmax"), 36),
        ("weight_statistics", "S4", ("mean", "std", "p99", "absmax"), 36),
    ],
)
def test_tables_of_other_numbers(part, table, fields, count):
    rows = published_rows(part, table=table)
    found = [[row["printed"], *(row[field] for field in fields)] for row in rows]
    assert found == [[bare(line[0]), *map(number, line[1:])] for line in cells(table)]
    assert sum(len(line) - 1 for line in found) == count


def test_gain_table():
    models = {"CFRN": "cfrn", "ESCNet": "escnet"}
    lines = cells("S7")
    rows = published_rows("gains", table="S7")
    for row, (model, dataset, rival, ours, gap) in zip(rows, lines, strict=True):
        name, _, score = rival.rstrip(")").partition(" (")
        assert (row["model"], row["dataset"], row["printed"]) == (models[model], dataset, name)
        assert (row["baseline_S"], row["S"], row["gain"]) == (float(score), float(ours), float(gap))


def test_tables_of_words():
    yes = {True: "Yes", False: "No"}
    for part, table, fields in (
        ("baseline_families", "S5", ("family", "methods")),
        ("diagnostic_items", "S8", ("item", "recoverable", "note")),
        ("evidence", "S9", ("item", "present", "supports")),
        ("operator_families", "S10", ("printed", "quantized", "rule")),
        ("variants", "S6", ("printed", "dstg", "dcrp", "constraints", "scope", "description")),
    ):
        shown = [
            [yes[v] if isinstance(v := row[field], bool) else v for field in fields]
            for row in published_rows(part, table=table)
        ]
        assert shown == [
            [bare(c).replace("--", "-") if c == "--" else bare(c) for c in line]
            for line in cells(table)
        ]
    assert {row["method"] for row in published_rows("variants")} <= set(ABLATION)


@pytest.mark.parametrize("entry", published()["statements"], ids=lambda e: e["what"][:40])
def test_a_number_of_the_text_stands_in_its_sentence(entry):
    assert any(entry["quote"] in sentence for sentence in SOURCE[entry["where"]])
    assert not Counter(map(float, entry["values"].values())) - Counter(numbers_in(entry["quote"]))


def test_no_number_of_a_quoted_sentence_is_left_out():
    for where, sentences in SOURCE.items():
        if where.startswith("tab:"):
            continue
        kept = {v for e in published_rows("statements", where=where) for v in e["values"].values()}
        for sentence in sentences:
            assert set(numbers_in(sentence)) <= kept, sentence


def test_the_text_agrees_with_the_tables_where_it_should():
    runtime = {row["method"]: row for row in published_rows("runtime")}
    ours, fp32 = runtime["cod-tdq"], runtime["fp32"]
    where = "sec:real_deployment"
    assert stated(where, "artifact")["fp32"] == fp32["weight_mb"] == 775.40
    assert stated(where, "peak memory") == {"fp32": fp32["peak_mb"], "cod_tdq": ours["peak_mb"]}
    ratio = ours["images_per_second"] / fp32["images_per_second"]
    assert stated(where, "COD-TDQ: throughput")["ratio"] == pytest.approx(ratio, abs=0.005)
    extra = stated(where, "bytes of scale")
    packed = stated(where, "bytes of the ideal")["bytes"]
    share = 100 * sum(extra.values()) / packed
    assert stated(where, "scales and metadata")["percent"] == pytest.approx(share, abs=0.0005)
    for row in runtime.values():
        assert row["images_per_second"] * row["ms_per_image"] == pytest.approx(1000, rel=1e-3)
    for row in published_rows("storage"):
        assert row["ratio"] == pytest.approx(row["fp32_mb"] / row["packed_mb"], abs=0.05)


def test_where_the_paper_disagrees_with_itself_a_note_says_so():
    notes = " ".join(published()["notes"])
    (cfrn,) = published_rows("storage", model="cfrn")
    (fp32,) = published_rows("runtime", method="fp32")
    assert (cfrn["fp32_mb"], fp32["weight_mb"]) == (755.4, 775.40)
    assert "775.40 MB in Table 5 and 755.4 MB in Table S1" in notes
    falls = []
    for dataset in DATASETS:
        best, ours = (
            published_rows("entries", table="2", dataset=dataset, method=m)[0]["MAE"]
            for m in ("repq-vit", "cod-tdq")
        )
        falls.append(round(best - ours, 3))
    assert (min(falls), max(falls)) == (0.020, 0.029) and ".020 to .029" in notes
    assert stated("sec:exp_cfrn", "CFRN, fall of MAE") == {"low": 0.008, "high": 0.020}
    for table in ("S3", "S4"):
        eight, four = (
            published_rows("weight_statistics", table=table, method=m)[0]["std"]
            for m in ("w4a8", "w4a4")
        )
        assert four > 2 * eight  # the same 4-bit weights
