"""The paper's own numbers, and the check that they may stand beside ours."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Any

from codtdq.errors import DataError
from codtdq.lab.tables.catalogue import stress_title
from codtdq.lab.tables.results import Row

# Where tables print the same cell, the first of these is shown: S2 has one digit more than 3.
_PREFERRED = ("2", "S2", "4", "1", "3")


@lru_cache(maxsize=1)
def published() -> dict[str, Any]:
    """The data file: every number of the paper, each with the place where it stands.

    `entries` are the scores of tables 1 to 4 and S2; other tables have parts of their own, whose
    rows say their `table`, and `tables` gives its label. `statements` are the numbers of figures
    and text, with the words around them.
    """
    text = files("codtdq.lab.tables").joinpath("published.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def published_entry(model: str, dataset: str, method: str) -> dict[str, Any] | None:
    """Return what the paper prints for a cell; None if it prints nothing."""
    found = [
        entry
        for entry in published()["entries"]
        if (entry["model"], entry["dataset"], entry["method"]) == (model, dataset, method)
    ]
    return min(found, key=lambda entry: _PREFERRED.index(entry["table"]), default=None)


def published_gain(model: str, dataset: str) -> dict[str, Any] | None:
    """Return a row of the paper's gain table; None if it has none."""
    rows = published()["gains"]
    return next((r for r in rows if (r["model"], r["dataset"]) == (model, dataset)), None)


def published_rows(part: str, **wanted: Any) -> list[dict[str, Any]]:
    """Return the rows of a part of the data file whose fields are as wanted, in their order."""
    rows: list[dict[str, Any]] = published()[part]
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def stated(where: str, what: str) -> dict[str, float]:
    """Return the numbers that a sentence or caption gives; `what` is the beginning of its words."""
    (found,) = [s for s in published_rows("statements", where=where) if s["what"].startswith(what)]
    values: dict[str, float] = found["values"]
    return values


def check_comparable(rows: Iterable[Row]) -> None:
    """Refuse unless every row is the paper's model on the paper's whole data set."""
    data = published()
    wrong = {"model": set(), "data set": set(), "images": set()}  # type: dict[str, set[str]]
    for row in rows:
        model, dataset = row["model"], row["dataset"]
        if model not in data["models"]:
            wrong["model"].add(model)
        elif row["stress"] is not None:
            wrong["model"].add(f"{model} with {stress_title(row['stress'])}")
        if dataset not in data["datasets"]:
            wrong["data set"].add(dataset)
        elif row["status"] == "ok" and row["count"] != data["datasets"][dataset]:
            expected = data["datasets"][dataset]
            wrong["images"].add(f"{row['count']} of the {expected} images of {dataset}")
    found = [f"{kind} {', '.join(sorted(names))}" for kind, names in wrong.items() if names]
    if found:
        raise DataError(
            f"--with-published: not the paper's: {'; '.join(found)}; the paper's numbers stand "
            f"beside {' and '.join(data['models'])} on all images of {', '.join(data['datasets'])} "
            "only: leave the option out, or give results of these alone"
        )
