"""Text of files reaches neither the terminal's controls nor a spreadsheet's formulas."""

import csv
import io

import pytest

from codtdq.cli import main
from codtdq.cli.common import table
from codtdq.lab.csvtable import csv_table
from codtdq.printing import printable

ESCAPE = "\x1b]0;owned\x07\x1b[31mred"


def test_printable_keeps_letters_and_writes_controls_out():
    assert printable("Größe σ 4x4") == "Größe σ 4x4"
    assert printable(ESCAPE) == "\\x1b]0;owned\\x07\\x1b[31mred"
    assert printable("a\u202eb\x9bc") == "a\\x202eb\\x9bc"


def test_text_tables_show_no_controls():
    shown = table(["name"], [[ESCAPE]])
    assert "\x1b" not in shown and "\\x1b" in shown


def test_errors_of_the_command_line_show_no_controls(capsys):
    assert main(["eval", "--model", ESCAPE]) == 2
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and len(shown.splitlines()) == 1


@pytest.mark.parametrize("cell", ["=1+2", "+1+2", "-1+2", "@SUM(A1)", "\t=1", "=cmd|' /C"])
def test_csv_cells_are_no_formulas(cell):
    text = csv_table([{"name": cell, cell: 1}])
    header, row = csv.reader(io.StringIO(text, newline=""))
    assert row[0] == f"'{cell}" and header[1] == f"'{cell}"


def test_csv_numbers_stay_numbers():
    text = csv_table([{"a": -1.5, "b": "-0.25", "c": "+3", "d": -7, "e": "plain - text"}])
    assert text.splitlines()[1] == "-1.5,-0.25,+3,-7,plain - text"
