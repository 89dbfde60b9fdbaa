"""The notebooks run from top to bottom, and are stored without outputs."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.ipynb"))


def test_there_are_two_and_they_hold_no_outputs():
    assert [path.stem for path in NOTEBOOKS] == ["compare_methods", "quantize_and_diagnose"]
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
        for cell in cells:
            if cell["cell_type"] == "code":
                compile("".join(cell["source"]), path.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [cell["outputs"] for cell in book.cells if cell.cell_type == "code"]
    assert sum(bool(output) for output in outputs) >= 2
