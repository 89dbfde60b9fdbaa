"""Cells, groups and the file of rows."""

import json

import pytest

from codtdq.errors import DataError
from codtdq.lab.bench import read_results
from codtdq.lab.bench.cells import IDENTITY, Cell, make_grid, make_groups, row_identity
from codtdq.lab.bench.rows import ResultsFile


def row(method, **fields):
    return {**Cell("m", method, "d").to_dict(), "status": "ok", **fields}


def test_grid_has_every_combination_once():
    cells = make_grid(
        ["a", "b"], ["x", "y", "x"], ["d", "e"], seeds=[0, 1], stress=[None, "outliers"], limit=3
    )
    assert len(cells) == len(set(cells)) == 2 * 2 * 2 * 2 * 2
    assert {c.limit for c in cells} == {3} and {c.budget for c in cells} == {"fast"}


@pytest.mark.parametrize("field", IDENTITY)
def test_every_field_of_the_identity_tells_cells_apart(field):
    cell = Cell("m", "x", "d")
    other = Cell(**{**cell.to_dict(), field: 7})
    assert cell.identity != other.identity
    assert row_identity(json.loads(json.dumps(cell.to_dict()))) == cell.identity


def test_a_group_shares_everything_but_the_data_set_and_slow_ones_come_first():
    cells = make_grid(["a", "b"], ["quick", "slow"], ["d", "e"], seeds=[0, 1])
    groups = make_groups(cells, ["slow"])
    assert len(groups) == 8 and all(len(g.cells) == 2 for g in groups)
    for group in groups:
        assert len({(c.model, c.method, c.seed, c.stress) for c in group.cells}) == 1
    assert [g.first.method for g in groups] == ["slow"] * 4 + ["quick"] * 4
    assert len({g.key for g in groups}) == 8 and not any("/" in g.key for g in groups)


def test_the_last_row_of_a_cell_wins_and_closing_leaves_one(tmp_path):
    path = tmp_path / "results.jsonl"
    with ResultsFile(path) as file:
        file.append(row("a", status="error"))
        file.append(row("b"))
        file.append(row("a", status="ok", number=2))
        assert len(path.read_text().splitlines()) == 3  # each on disk at once
        assert [r.get("number") for r in read_results(path)] == [2, None]
    assert len(path.read_text().splitlines()) == 2
    assert [r["status"] for r in read_results(tmp_path)] == ["ok", "ok"]


def test_a_line_that_was_cut_off_is_dropped_and_written_over(tmp_path):
    path = tmp_path / "results.jsonl"
    whole = json.dumps(row("a")) + "\n"
    for cut in (1, len(whole) // 2, len(whole) - 1):
        path.write_text(whole + json.dumps(row("b"))[:cut])
        assert [r["method"] for r in read_results(path)] == ["a"]
        with ResultsFile(path) as file:
            file.append(row("c"))
        assert [r["method"] for r in read_results(path)] == ["a", "c"]


def test_a_damaged_line_in_the_middle_is_reported(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("{oops\n" + json.dumps(row("b")) + "\n")
    with pytest.raises(DataError, match="line 1 is not JSON"):
        read_results(path)
    with pytest.raises(DataError, match="no such file"):
        read_results(tmp_path / "other.jsonl")
