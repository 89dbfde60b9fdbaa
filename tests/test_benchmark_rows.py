"""The tables of the pages show what the rows in results/ say, to the digit."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from codtdq.methods.registry import list_methods, method_info

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "benchmark.md").read_text()
SPLITS = 4
FOLDING = {name for name in list_methods() if method_info(name).folds_norms}


def rows_of(folder):
    lines = (ROOT / "results" / folder / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


PLAIN, OUTLIERS = rows_of("camosynth"), rows_of("camosynth-outliers")


def scores(rows, limit=None):
    """Mean S of the four splits, by title and model; limit: of their first images."""
    found = defaultdict(list)
    for row in rows:
        values = row["per_image"]["S"][:limit]
        found[row["info"]["title"], row["model"]].append(sum(values) / len(values))
    assert all(len(values) == SPLITS for values in found.values())
    return {key: sum(values) / SPLITS for key, values in found.items()}


def table(heading):
    """Cells of the table behind a heading."""
    text = PAGE[PAGE.index(heading) :]
    lines = re.search(r"\n\| method .*?\n\n", text, re.DOTALL).group().strip().splitlines()
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[-1] and not line.startswith("<!--"):
            yield re.sub(r"\[(.*)\]\(.*\)| \([as]\)$", r"\1", cells[0]).strip(), cells[1:]


def checked(heading, columns):
    """Compare the last cells of every line; returns how many lines there are."""
    count = 0
    for title, cells in table(heading):
        for text, (by_cell, model) in zip(cells[-len(columns) :], columns):
            assert abs(float(text) - by_cell[title, model]) <= 0.0005001, (title, model, text)
        count += 1
    return count


def test_scores_of_all_methods():
    plain = scores(PLAIN)
    columns = [(plain, "cfrn-small"), (plain, "escnet-small")]
    assert checked("## Results: S, mean over the four splits", columns) > 40


def test_scores_with_planted_outliers():
    plain, planted = scores(PLAIN, 50), scores(OUTLIERS)
    columns = [(by, model) for model in ("cfrn-small", "escnet-small") for by in (plain, planted)]
    for title in ("COD-TDQ (conv per tensor)",):  # its planted rows are of CFRN: elsewhere it is
        planted.setdefault((title, "escnet-small"), planted["COD-TDQ", "escnet-small"])  # cod-tdq
    assert checked("## Stress: planted outlier channels", columns) > 20


@pytest.mark.parametrize("rows", [PLAIN, OUTLIERS], ids=["plain", "outliers"])
def test_methods_that_fold_batch_norms_did(rows):
    """ESCNet has batch norms; rows of these methods are of networks without them."""
    for row in rows:
        if row["model"] == "escnet-small" and row["method"] in FOLDING:
            assert row["config"]["fold_norms"], row["method"]
            assert row["method_notes"]["folded_batch_norms"] > 0, row["method"]


@pytest.mark.parametrize("script", ["speed_tables.py", "score_tables.py", "ship_tables.py"])
def test_pages_show_the_rows(script):
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_table_of_scores_stands_on_one_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import page_blocks
    import score_tables

    names = [
        found[1]
        for path in score_tables.pages()
        for found in page_blocks.BLOCK.finditer(path.read_text(encoding="utf-8"))
    ]
    assert sorted(names) == sorted(score_tables.TABLES)


def test_the_readme_has_the_size_of_the_file_that_ships(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import readme_table

    table, _ = readme_table.readme().strip().rsplit("\n\n", 1)
    folder = ROOT / "src" / "codtdq" / "weights" / readme_table.SHIPPED
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert f"| {size / 1e6:.1f} MB |" in table.splitlines()[-1]


def test_rows_of_vit_cod_stand_in_their_order(monkeypatch):
    """Ours first, other methods by S, cod-tdq-plus last; whatever the file's order is."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import vit_cod_tables

    found = rows_of("vit-cod")
    found = [row for row in found if row["method"] not in ("arcquant", "smoothquant")]
    added = [
        {**found[0], "method": name, "metrics": {**found[0]["metrics"], "S": score}}
        for name, score in (("smoothquant", 0.7), ("arcquant", 0.9))
    ]
    monkeypatch.setattr(vit_cod_tables, "rows", lambda _file: [*added, *reversed(found)])
    shown = re.findall(r"^\| .*?`([\w-]+)`", vit_cod_tables.vit_cod(), re.MULTILINE)
    assert shown[:4] == ["w4a4", "dstg-only", "cod-tdq", "cod-tdq-guarded"]
    assert shown.index("arcquant") < shown.index("smoothquant") < shown.index("cod-tdq-plus")
    assert shown[-1] == "cod-tdq-plus"


def test_a_page_that_differs_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import page_blocks

    page = tmp_path / "page.md"
    page.write_text("<!-- a -->\nold\n<!-- /a -->\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    assert page_blocks.main("", [page], lambda name: f"{name} new\n") == 1
    assert "differs from the rows: run python tables.py" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    assert page_blocks.main("", [page], lambda name: f"{name} new\n") == 0
    assert page.read_text(encoding="utf-8") == "<!-- a -->\na new\n<!-- /a -->\n"
