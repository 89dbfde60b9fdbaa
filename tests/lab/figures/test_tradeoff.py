"""Speed against loss: who stands on the line, what the axes mean, and how large the points are."""

import pytest

from codtdq.errors import DataError
from codtdq.lab.figures import figure_bytes, tradeoff
from codtdq.lab.figures.tradeoff import Point, front


def row(name, speed, score=None, size=10e6, threads=1, difference=0.1):
    found = {
        "candidate": name,
        "batch": 1,
        "threads": threads,
        "speedup": {"median": speed},
        "weight_bytes": size,
        "difference": difference,
    }
    return found if score is None else {**found, "accuracy": {"S": score}}


def result(*rows):
    return {"model": "net", "rows": list(rows)}


SCORED = result(
    row("fp32", 1.0, 0.82, 40e6),
    row("ours", 2.5, 0.81, 5e6),
    row("int8", 3.0, 0.80, 11e6),
    row("slow", 1.5, 0.79, 20e6),
    {"candidate": "dead", "batch": 1, "threads": 1, "skipped": "it cannot"},
)


def test_the_front_joins_what_nothing_beats():
    points = [Point("a", 1, 0.9, 1), Point("b", 2, 0.8, 1), Point("c", 1.5, 0.7, 1)]
    points += [Point("d", 2, 0.6, 1)]
    assert [p.name for p in front(points, higher=True)] == ["a", "b"]
    assert [p.name for p in front(points, higher=False)] == ["d"]


def test_points_stand_where_the_rows_say():
    figure = tradeoff(SCORED)
    (axes,) = figure.axes
    places = [tuple(float(v) for v in c.get_offsets()[0]) for c in axes.collections]
    assert places == [(1.0, 0.82), (1.5, 0.79), (3.0, 0.80), (2.5, 0.81)]  # large ones first
    areas = [float(c.get_sizes()[0]) for c in axes.collections]
    assert areas == sorted(areas, reverse=True) and len(set(areas)) == 4
    looks = {(tuple(c.get_facecolor()[0])) for c in axes.collections}
    assert len(looks) == 4 and "S (higher" in axes.get_ylabel()
    line = axes.get_lines()[0]
    assert list(line.get_xdata()) == [1.0, 2.5, 3.0]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["fp32, 40 MB", "ours, 5 MB", "int8, 11 MB", "slow, 20 MB"]


def test_without_scores_the_axis_is_a_distance_and_cells_are_panels():
    figure = tradeoff(result(row("fp32", 1, difference=0), row("x", 2), row("x", 3, threads=2)))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["net, batch 1, 1 thread", "net, batch 1, 2 threads"]
    assert all("distance" in axes.get_ylabel() for axes in figure.axes)


def test_thirteen_candidates_can_be_told_apart():
    rows = [row(f"r{i}", 1 + i / 5, 0.5 + i / 50) for i in range(13)]
    (axes,) = tradeoff(result(*rows)).axes
    looks = {
        (tuple(c.get_facecolor()[0]), c.get_paths()[0].vertices.tobytes()) for c in axes.collections
    }
    assert len(looks) == 13


def test_the_same_figure_is_the_same_bytes_and_nothing_is_an_error():
    assert figure_bytes(tradeoff(SCORED), "png") == figure_bytes(tradeoff(SCORED), "png")
    with pytest.raises(DataError, match="nothing to draw"):
        tradeoff(result({"candidate": "d", "batch": 1, "threads": 1, "skipped": "no"}))
