"""Tables of speed, storage, weights and operators, of ESCNet alone, and of the variants."""

import csv
import io
import json
import re

import fixture_documents as documents
import fixture_results as fixture
import pytest

from codtdq.lab.tables import Results, build_tables, read_documents
from codtdq.lab.tables.catalogue import ABLATION
from codtdq.planning import PRESETS, preset

KINDS = {
    "runtime": documents.deployment,
    "storage": documents.deployment,
    "weights": documents.weights,
    "operators": documents.operators,
}


@pytest.fixture
def tables_of(tmp_path):
    def build(document, kind, **options):
        path = documents.write(tmp_path / f"{kind}.json", document)
        return build_tables(Results(()), kind, documents=read_documents([path]), **options)

    return build


def cells(table):
    """First cell -> what the others show: text, published, mark."""
    return {
        line[0].text: [(cell.text, cell.beside, cell.mark) for cell in line[1:]]
        for section in table.sections
        for line in section.lines
    }


def test_runtime_beside_the_paper(tables_of):
    (table,) = tables_of(documents.deployment(), "runtime", with_published=True)
    assert [c.label for c in table.columns[:5]] == [
        "Method",
        "Weight (MB)↓",
        "FPS (img/s)↑",
        "Latency (ms/img)↓",
        "Peak memory (MB)↓",
    ]
    found = cells(table)
    assert list(found) == [
        "FP32",
        "Naive W4A4",
        "PTQ4SAM",
        "RepQ-ViT",
        "IGQ-ViT",
        "COD-TDQ",
        "DSTG only",
    ]
    assert [section.title for section in table.sections] == ["", "Ours"]
    assert found["FP32"][:4] == [
        ("775.00", "775.40", ""),
        ("1.25", "29.40", ""),
        ("800.00", "34.02", ""),
        ("1900.00", "1421.31", ""),
    ]
    assert found["COD-TDQ"] == [
        ("101.30", "108.19", "best"),
        ("2.56", "44.21", "best"),
        ("390.00", "22.61", "best"),
        ("930.00", "834.92", "second"),
        ("2.05x", "", ""),
        ("native (avx2)", "", ""),
    ]
    # a rival that was not measured still has the paper's row
    assert found["IGQ-ViT"][1] == ("-", "44.19", "") and found["IGQ-ViT"][5][0] == "not measured"
    assert found["RepQ-ViT"][5][0] == "simulated"
    notes = " ".join(table.notes)
    assert "Imaginary CPU" in notes and "RTX 4090" in notes and "Simulated: quantized" in notes
    record = next(r for r in table.records if r["method"] == "cod-tdq")
    assert record["peak_bytes"] == 9.3e8 and record["peak_mb_published"] == 834.92
    assert record["native_of_quantized"] == 0.75 and record["execution"].startswith("native")
    assert next(r for r in table.records if r["method"] == "w4a4")["native_of_quantized"] is None


def test_runtime_of_latency_rows(tables_of):
    one, four = tables_of(documents.latency(), "runtime")
    assert one.title == "Runtime efficiency: cfrn-small, 160 x 160, batch 1, 1 thread"
    assert [s.title for s in one.sections] == ["", "Other runtimes"]
    assert "openvino" not in cells(one)  # skipped: nothing was measured
    assert cells(four)["IGQ-ViT"][2:4] == [("120.00", "", ""), ("500.00", "", "")]
    assert cells(one)["IGQ-ViT"][3] == ("-", "", "")  # its memory was measured at batch 4 only


def test_runtime_of_a_gpu_and_of_a_model_that_the_paper_did_not_time(tables_of):
    rows = [
        {
            "candidate": name,
            "batch": 4,
            "weight_bytes": 1e8,
            "ms_per_image": ms,
            "speedup": 40 / ms,
            "images_per_second": 1000 / ms,
            "peak_bytes": 8e8,
            "execution": execution,
        }
        for name, ms, execution in (("fp32", 40.0, "torch"), ("cod-tdq", 20.0, "native (sm)"))
    ]
    gpu = {"model": "cfrn", "input_size": 384, "device": "Imaginary GPU", "rows": rows}
    (table,) = tables_of({**gpu, "coverage": {}}, "runtime", with_published=True)
    assert table.title == "Runtime efficiency: cfrn, 384 x 384, batch 4"
    assert cells(table)["COD-TDQ"][2:5] == [
        ("20.00", "22.61", ""),  # alone: nothing to rank
        ("800.00", "834.92", ""),
        ("2.00x", "", ""),
    ]
    assert "Imaginary GPU" in table.notes[0] and "allocated on the GPU" in table.notes[0]
    both = documents.deployment()
    both["models"].append({**both["models"][0], "model": "escnet"})
    cfrn, escnet = tables_of(both, "runtime", with_published=True)
    assert cells(cfrn)["FP32"][0][1] == "775.40" and cells(escnet)["FP32"][0][1] == ""
    assert "PTQ4SAM" not in cells(escnet) and "RTX" not in " ".join(escnet.notes)


def test_storage_beside_the_paper(tables_of):
    (table,) = tables_of(documents.deployment(), "storage", with_published=True)
    assert cells(table)["cfrn"] == [
        ("COD-TDQ", "", ""),
        ("800.0", "755.4", ""),
        ("100.5", "110.0", ""),
        ("8.0x", "6.9x", ""),
        ("100,000,000", "97,065,266", ""),
        ("400,000", "326,632", ""),
        ("100,000", "4,364", ""),
        ("0.500%", "0.341%", ""),
    ]
    assert "775.40" in " ".join(table.notes)
    (escnet,) = tables_of(documents.deployment("escnet"), "storage", with_published=True)
    assert cells(escnet)["escnet"][1:5] == [
        ("800.0", "381.8", ""),
        ("100.5", "101.5", ""),
        ("8.0x", "3.8x", ""),
        ("100,000,000", "", ""),
    ]


def test_weights_beside_the_paper(tables_of):
    (table,) = tables_of(documents.weights(), "weights", with_published=True)
    found = cells(table)
    first, *_, last = found
    assert (first, last, len(found)) == ("FP32", "SmoothQuant", 9 + 1)
    assert found["FP32"] == [
        ("-1.250e-04", "-6.450e-05", ""),
        ("0.05000", "0.05019", ""),
        ("0.12500", "0.11918", ""),
        ("0.50000", "0.45400", ""),
    ]
    assert found["PTQ4SAM"][3] == ("-", "1.13471", "")
    assert found["SmoothQuant"][0] == ("1.000e-06", "", "")
    assert "Table S3" in table.notes[1]


def test_operators_beside_the_paper(tables_of):
    (table,) = tables_of(documents.operators(), "operators", with_published=True)
    found = cells(table)
    assert [cell[:2] for cell in found["Attention Linear"][:5]] == [
        ("48 Linear", ""),
        ("48", ""),
        ("48", "paper: yes"),
        ("1,200", ""),
        ("W4A4 token group", ""),
    ]
    assert found["Attention Linear"][5][0].startswith("Quantized under W4A4")
    assert found["Norms"][2] == ("0", "paper: no", "") and found["Other Linear"][5][0] == "-"
    assert found["swin"][1][0] == "52" and table.sections[1].title == "By module"


def test_escnet_alone_has_four_digits_and_the_paper_beside():
    rows = fixture.paper_rows()
    (table,) = build_tables(Results(tuple(rows)), "escnet", with_published=True)
    assert {r["model"] for r in table.records} == {"escnet"}
    assert [c.label for c in table.columns[1:6]] == ["S↑", "wF↑", "E_mean↑", "F_max↑", "MAE↓"]
    camo = cells(table)["RepQ-ViT"][:5]
    assert [beside for _, beside, _ in camo] == [".7707", ".7014", ".8482", ".7514", ".0786"]
    (row,) = [
        r for r in rows if (r["model"], r["method"], r["dataset"]) == ("escnet", "repq-vit", "CAMO")
    ]
    assert float(camo[3][0]) == pytest.approx(row["metrics"]["F_max"], abs=5.1e-5)
    assert {r["published_table"] for r in table.records if r["method"] == "cod-tdq"} == {"S2"}
    assert "DCRP only" not in cells(table)


def test_variants_are_defined_as_the_presets_are():
    for name, variant in ABLATION.items():
        if name not in PRESETS:  # a method of its own file
            continue
        config = preset(name)
        assert variant.dstg == ("per_token_group" in dict(config.act_modes).values()), name
        bounds = [b for b, v in (("C1", config.tau), ("C2", config.zero_ratio)) if v is not None]
        assert variant.constraints == (" + ".join(bounds) or "-"), name
        assert ("fixed" in variant.scope) == (config.act_range == "static"), name


def test_variants_need_no_results(run):
    code, out, _ = run("--table", "variants")
    assert code == 0 and re.search(r"^c1-only +\| no +yes +C1 +all operators", out, re.MULTILINE)
    records = json.loads(run("--table", "variants", "--with-published", "--json")[1])[0]["records"]
    (attention,) = [r for r in records if r["method"] == "dcrp-attn"]
    assert attention["scope_published"] == "Attention projections only"
    assert attention["printed_published"] == "DCRP-Attn"
    code, _, err = run("--table", "main")
    assert code == 2 and "no results given" in err


@pytest.mark.parametrize("kind", KINDS)
def test_every_style(kind, run, tmp_path):
    path = documents.write(tmp_path / "found.json", KINDS[kind]())
    text = run(path, "--table", kind, "--width", 300)[1]
    bars = {line.index(" | ") for line in text.splitlines() if " | " in line}
    assert len(bars) == 1
    mark = run(path, "--table", kind, "--style", "markdown")[1]
    widths = {
        len(re.findall(r"(?<!\\)\|", line)) for line in mark.splitlines() if line.startswith("|")
    }
    assert len(widths) == 1
    latex = run(path, "--table", kind, "--style", "latex")[1]
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    bare = re.sub(r"\\[{}]", "", latex)
    assert bare.count("{") == bare.count("}") and not re.search(r"[↑↓×]", latex)
    rows = list(csv.DictReader(io.StringIO(run(path, "--table", kind, "--style", "csv")[1])))
    assert rows and rows[0]["model"] == "cfrn"


def test_all_takes_rows_and_documents_together(run, tmp_path):
    rows = fixture.write(tmp_path / "r.jsonl", [fixture.row(), fixture.row(method="cod-tdq")])
    other = documents.write(tmp_path / "speed.json", documents.deployment())
    found = json.loads(run(rows, other, "--json")[1])
    assert [t["table"] for t in found] == ["main", "gain", "stats", "runtime", "storage"]
    alone = run(other, "--style", "csv")[1]
    assert alone.startswith("model,device,input_size,batch")


@pytest.mark.parametrize(
    ("document", "kind", "message"),
    [
        (documents.latency(), "runtime", "the paper's runtime table is of cfrn"),
        (documents.weights("cfrn-small"), "weights", "the paper's statistics are of cfrn's swin"),
        (documents.deployment("pvt"), "storage", "these rows are of pvt by cod-tdq"),
    ],
)
def test_published_numbers_are_refused_beside_others(document, kind, message, run, tmp_path):
    path = documents.write(tmp_path / "x.json", document)
    code, out, err = run(path, "--table", kind, "--with-published")
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ("{", "not JSON"),
        ("[1]", "a JSON list"),
        ('{"x": 1}', "not a result of codtdq bench latency"),
        ('{"models": [{"model": "cfrn"}]}', "'coverage' is missing"),
    ],
)
def test_a_bad_document_is_one_line(text, message, run, tmp_path):
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    code, out, err = run(path, "--table", "runtime")
    assert code == 2 and out == "" and err.count("\n") == 1 and message in err and "bad.json" in err


def test_a_document_of_another_kind_says_what_is_needed(run, tmp_path):
    path = documents.write(tmp_path / "w.json", documents.weights())
    code, _, err = run(path, "--table", "runtime")
    assert code == 2 and "a .json file of codtdq bench latency or bench deployment --out" in err
