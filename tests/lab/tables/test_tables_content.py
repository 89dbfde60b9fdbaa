"""What stands in the tables: values, ranks, marks, failures, stress, provenance."""

import statistics

import fixture_results as fixture
import pytest

from codtdq.errors import ConfigError, DataError
from codtdq.lab.tables import build_tables, read_results
from codtdq.lab.tables.layout import METRICS, Cell, decimal, rank


@pytest.fixture
def tables_of(tmp_path):
    def build(rows, *args, **kwargs):
        return build_tables(
            read_results([fixture.write(tmp_path / "r.jsonl", rows)]), *args, **kwargs
        )

    return build


def lines(table):
    return {line[0].text: line for section in table.sections for line in section.lines}


def column(table, label, group=""):
    (index,) = [i for i, c in enumerate(table.columns) if (c.label, c.group) == (label, group)]
    return index


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8764, ".876"), (0.0005, ".001"), (1.0, "1.000"), (-0.0119, "-.012"), (-0.0001, ".000")],
)
def test_numbers_as_the_paper_prints_them(value, text):
    assert decimal(value, 3) == text
    assert decimal(0.1185, 3, sign=True) == "+.119"


def test_rank_marks_ties_at_the_printed_digits():
    cells = [Cell(""), Cell(""), Cell(""), Cell("")]
    rank(list(zip(cells, (0.5001, 0.4999, 0.4, 0.3))), METRICS["S"], 3)
    assert [c.mark for c in cells] == ["best", "best", "second", ""]
    cells = [Cell(""), Cell(""), Cell("")]
    rank(list(zip(cells, (0.05, float("nan"), 0.03))), METRICS["MAE"], 3)
    assert [c.mark for c in cells] == ["second", "", "best"]


def test_main_table(tables_of):
    rows = fixture.benchmark()
    plain, stressed, _ = tables_of(rows, "main")
    assert [s.title for s in plain.sections] == [
        "Full precision and naive quantization",
        "ViT PTQ",
        "SAM and LLM PTQ",
        "Ours",
        "Variants, controls and others",
    ]
    found, s = lines(plain), column(plain, "S↑", "camosynth/test-easy")
    # seeds: mean and sample standard deviation
    mine = [
        r["metrics"]["S"]
        for r in rows
        if (r["model"], r["method"], r["dataset"], r["stress"])
        == ("cfrn-small", "repq-vit", "camosynth/test-easy", None)
    ]
    assert len(mine) == 3
    expected = f"{decimal(statistics.fmean(mine), 3)}±{decimal(statistics.stdev(mine), 3)}"
    assert found["RepQ-ViT"][s].text == expected
    assert "±" not in found["FP32"][s].text
    # references take no part, although they are higher
    assert found["FP32"][s].mark == found["Naive W8A8"][s].mark == ""
    assert found["COD-TDQ guarded"][s].mark == "best" and found["COD-TDQ"][s].mark == "second"
    mae = column(plain, "MAE↓", "camosynth/test-easy")
    assert found["COD-TDQ guarded"][mae].mark == "best"
    # what stands beside the scores
    cells = [cell.text for cell in found["ORQ-ViT"][1:7]]
    assert cells == ["static", "per channel", "32", "yes", "4.13", "4.51"]
    assert "DSTG only" not in found  # an ablation
    # stressed rows never mix with plain ones
    assert "planted outlier channels" in stressed.title and len(lines(stressed)) == 4
    assert "planted" not in plain.title


def test_marks_of_evidence_in_every_table(tables_of):
    for table in tables_of(fixture.benchmark()):
        texts = set(table.footnotes.values())
        found = lines(table)
        if "ORQ-ViT" in found:
            (ref,) = found["ORQ-ViT"][0].refs
            assert table.footnotes[ref] == "evidence: re-implemented from the abstract"
            assert found["RepQ-ViT"][0].refs == () and found["FP32"][0].refs == ()
        if table.kind != "bits":
            assert "evidence: paper text" in texts


def test_failed_cells_say_so_and_why(tables_of):
    table = tables_of(fixture.benchmark(), "main")[0]
    line = lines(table)["FIMA-Q"]
    cell = line[column(table, "S↑", "camosynth/test-hard")]
    assert cell.text == "failed" and cell.mark == ""
    (ref,) = cell.refs
    assert "seeds 0, 1, 2" in table.footnotes[ref] and "loss is not finite" in table.footnotes[ref]
    assert "±" in line[column(table, "S↑", "camosynth/test-easy")].text
    # some seeds only: the mean of the others, with the footnote
    rows = [
        fixture.row(method="repq-vit", seed=0),
        fixture.row(),
        fixture.row(method="repq-vit", seed=1, error="OutOfMemory: 3 GB\nmore"),
    ]
    table = tables_of(rows, "main")[0]
    cell = lines(table)["RepQ-ViT"][column(table, "S↑", "camosynth/test-easy")]
    assert cell.text == decimal(rows[0]["metrics"]["S"], 3)
    assert table.footnotes[cell.refs[0]].endswith("(seed 1): OutOfMemory: 3 GB more")


def test_method_that_failed_everywhere_keeps_its_line(tables_of):
    rows = [fixture.row(), fixture.row(method="ptq4vit", error="ValueError: no")]
    assert lines(tables_of(rows, "main")[0])["PTQ4ViT"][-1].text == "failed"


def test_ablation_and_bits_order(tables_of):
    rows = [fixture.row(method=m) for m in ("cod-tdq", "dcrp-only", "w4a4", "dstg-only", "fp32")]
    ablation, bits = tables_of(rows, "ablation")[0], tables_of(rows, "bits")[0]
    assert list(lines(ablation)) == ["Naive W4A4", "DSTG only", "DCRP only", "COD-TDQ"]
    assert [c.text for c in lines(ablation)["DSTG only"][1:3]] == ["yes", "-"]
    assert list(lines(bits)) == ["FP32", "Naive W4A4"]
    assert lines(bits)["FP32"][-1].mark == "best"  # as in the paper's first table


def test_gain_is_honest_about_its_sign(tables_of):
    rows = [fixture.row(method=m) for m in ("fp32", "repq-vit", "ptq4vit", "dstg-only")]
    rows.append(fixture.row(method="cod-tdq", shift=-0.2))
    (table,) = tables_of(rows, "gain")
    (record,) = table.records
    assert record["baseline"] == "repq-vit"
    expected = rows[-1]["metrics"]["S"] - rows[1]["metrics"]["S"]
    assert record["gain"] == pytest.approx(expected) and expected < 0
    assert table.sections[0].lines[0][-1].text == decimal(expected, 3)
    assert table.sections[0].lines[0][-1].text.startswith("-")


def test_gain_names_ties_and_failures(tables_of):
    tie = fixture.row(method="repq-vit")
    other = fixture.row(method="ptq4vit", metrics=tie["metrics"])
    rows = [tie, other, fixture.row(method="cod-tdq", error="boom")]
    (table,) = tables_of(rows, "gain")
    cells = table.sections[0].lines[0]
    assert cells[2].text.startswith("PTQ4ViT / RepQ-ViT tie") and cells[3].text == "failed"
    assert table.records[0]["gain"] is None


def test_stats_against_the_best_baseline(tables_of):
    rows = fixture.benchmark()
    table = tables_of(rows, "stats")[0]
    assert [s.title.split(":")[0] for s in table.sections] == [
        "camosynth/test-easy",
        "camosynth/test-hard",
        "all data sets (2)",
    ]
    assert {r["baseline"] for r in table.records} == {"repq-vit"}  # never ours, never 8 bits
    pooled = {r["method"]: r for r in table.records if r["dataset"].startswith("all")}
    assert pooled["cod-tdq"]["images"] == 48 and pooled["cod-tdq"]["excludes_zero"]
    assert pooled["cod-tdq"]["low"] > 0 > pooled["w4a4"]["high"]
    assert pooled["cod-tdq"]["high_fp32"] < 0
    assert "fima-q" not in pooled and any("fima-q" in note for note in table.notes)
    means = [
        r["metrics"]["S"]
        for r in rows
        if (r["model"], r["method"], r["stress"]) == ("cfrn-small", "cod-tdq", None)
    ]
    rivals = [
        r["metrics"]["S"]
        for r in rows
        if (r["model"], r["method"], r["stress"]) == ("cfrn-small", "repq-vit", None)
    ]
    expected = statistics.fmean(means) - statistics.fmean(rivals)
    assert pooled["cod-tdq"]["difference"] == pytest.approx(expected, abs=1e-9)


def test_stats_refuse_other_images(tables_of):
    other = fixture.row(method="repq-vit")
    other["per_image"]["name"][3] = "elsewhere"
    with pytest.raises(DataError, match="not scored on the same images"):
        tables_of([fixture.row(), other], "stats")
    with pytest.raises(DataError, match="no per-image E_max"):
        tables_of([fixture.row(), fixture.row(method="repq-vit")], "stats", metrics=["E_max"])


def test_a_joined_set_is_not_pooled_with_its_parts(tables_of):
    names = ("camosynth", "camosynth/test-easy", "camosynth/test-hard")
    rows = [fixture.row(method=m, dataset=d) for m in ("w4a4", "cod-tdq") for d in names]
    table = tables_of(rows, "stats")[0]
    assert table.records[-1]["dataset"] == "all data sets (2)" and table.records[-1]["images"] == 48


def test_statement_tells_where_numbers_come_from_and_what_is_mixed(tables_of):
    rows = [fixture.row(), fixture.row(method="repq-vit")]
    (table,) = tables_of(rows, "main")
    text = " ".join(table.notes)
    for fact in (
        "Simulated W4A4",
        "24 of camosynth/test-easy",
        "Seed 0",
        "Imaginary CPU",
        "torch 2.9.0",
        "codtdq 0.1.0",
    ):
        assert fact in text
    assert "Mixed" not in text
    rows[1]["environment"] = {**fixture.ENVIRONMENT, "torch": "2.4.0"}
    rows[1]["hashes"] = {**rows[1]["hashes"], "float_model": "other"}
    rows.append(fixture.row(method="orq-vit", budget="full"))
    rows.append(fixture.row(method="fima-q", budget="fast"))
    text = " ".join(tables_of(rows, "main")[0].notes)
    for fact in ("torch 2.9.0, 2.4.0", "different float models", "budgets full, fast"):
        assert fact in text


def test_limits_have_tables_of_their_own(tables_of):
    rows = [fixture.row(), fixture.row(method="repq-vit", limit=8, images=8)]
    tables = tables_of(rows, "main")
    assert [len(lines(t)) for t in tables] == [1, 1]
    assert "at most 8 images" in tables[1].title
    assert all(any("mix limits" in note for note in t.notes) for t in tables)


def test_budgets_are_lines_only_where_they_matter(tables_of):
    rows = [fixture.row(method=m, budget=b) for m in ("w4a4", "orq-vit") for b in ("fast", "full")]
    assert list(lines(tables_of(rows, "main")[0])) == [
        "Naive W4A4",
        "ORQ-ViT (fast)",
        "ORQ-ViT (full)",
    ]


def test_repeated_cells(tables_of):
    first, again = fixture.row(), fixture.row(shift=0.1)
    failed = fixture.row(error="boom")
    (table,) = tables_of([failed, first, again, failed], "main")
    assert table.records[0]["S"] == again["metrics"]["S"] and table.records[0]["error"] is None
    assert any("more than once: 1;" in note for note in table.notes)


def test_a_users_eight_bit_method_is_not_ranked(tables_of):
    eight = {"act_bits": 8, "weight_bits": 4}
    rows = [fixture.row(), fixture.row(method="repq-vit")]
    rows.append(fixture.row(method="my-own", shift=0.3, config=eight))
    table = tables_of(rows, "main")[0]
    assert lines(table)["My own"][-1].mark == "" and lines(table)["RepQ-ViT"][-1].mark == "best"
    assert any("Not W4A4" in note and "My own" in note for note in table.notes)


def test_missing_numbers(tables_of):
    broken = fixture.row(method="repq-vit")
    broken["metrics"]["S"] = None
    broken["per_image"]["S"][0] = None
    rows = [fixture.row(), broken, fixture.row(method="ptq4vit")]
    table = tables_of(rows, "main")[0]
    cell = lines(table)["RepQ-ViT"][column(table, "S↑", "camosynth/test-easy")]
    assert (cell.text, cell.mark) == ("nan", "")
    assert any("not a number" in note for note in tables_of(rows, "stats")[0].notes)


def test_what_cannot_be_filled(tables_of):
    with pytest.raises(DataError, match="needed for ablation: a variant"):
        tables_of([fixture.row()], "ablation")
    with pytest.raises(ConfigError, match="metric Q is not in the results; there are S"):
        tables_of([fixture.row()], "main", metrics=["Q"])
    with pytest.raises(ConfigError, match="table is 'x'"):
        tables_of([fixture.row()], "x")
