"""Plain data, names and errors as text."""

import dataclasses
import json
import math

import pytest

from codtdq.lab.csvtable import csv_table
from codtdq.lab.text import one_line, plain, safe_name


@dataclasses.dataclass
class Point:
    x: float
    near: tuple = ()


def test_plain_gives_json_types():
    value = {1: Point(math.nan, (Point(0.5),)), "a": {2}, "b": True, "c": None}
    found = plain(value)
    assert found == {
        "1": {"x": None, "near": [{"x": 0.5, "near": []}]},
        "a": [2],
        "b": True,
        "c": None,
    }
    json.dumps(found, allow_nan=False)


def test_plain_rounds_floats_only_when_asked():
    assert plain([1.23456789, 7]) == [1.23456789, 7]
    assert plain([1.23456789, 1234567], digits=3) == [1.23, 1234567]


def test_plain_leaves_other_types_unless_told():
    path = object()
    assert plain([path]) == [path]
    assert plain([path], other=lambda value: "known") == ["known"]


@pytest.mark.parametrize(
    ("text", "name"),
    [("a/b c", "a-b-c"), ("../up", "up"), ("...", "unnamed"), ("", "unnamed"), ("é.1", "é.1")],
)
def test_safe_name_is_one_component(text, name):
    assert safe_name(text) == name


def test_one_line_cuts_long_messages():
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert one_line(ValueError()) == "ValueError"
    assert one_line(ValueError("x" * 50), 20) == "ValueError: xxxxxxxx..."


def test_csv_table_has_a_column_for_every_key(tmp_path):
    text = csv_table([{"a": 1}, {"b": math.inf, "a": "x,y"}], tmp_path / "t.csv")
    assert text == 'a,b\n1,\n"x,y",\n'
    assert (tmp_path / "t.csv").read_text() == text
