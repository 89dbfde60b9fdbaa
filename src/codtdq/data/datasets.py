"""Opening a data set by one word: a camosynth split, a benchmark or a folder."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from codtdq.data.benchmarks import BENCHMARKS, benchmark_named, find_dataset
from codtdq.data.camosynth import DEFAULT_SIZE, CamoSynth
from codtdq.data.dataset import Dataset, JoinedDataset, check_limit
from codtdq.data.folder import ImageMaskFolder
from codtdq.data.splits import SPLITS, TEST_SPLITS
from codtdq.errors import DataError

SYNTHETIC = "camosynth"


@dataclass(frozen=True)
class DatasetInfo:
    """One row of the data set table; expected None is unbounded."""

    name: str
    kind: str
    expected: int | None
    description: str


def list_datasets() -> list[DatasetInfo]:
    """Return every name that `open_dataset` knows, synthetic ones first."""
    total = sum(SPLITS[name].count or 0 for name in TEST_SPLITS)
    rows = [DatasetInfo(SYNTHETIC, "synthetic", total, "the four synthetic test splits together")]
    for split in SPLITS.values():
        name = f"{SYNTHETIC}/{split.name}"
        rows.append(DatasetInfo(name, "synthetic", split.count, split.description))
    for item in BENCHMARKS.values():
        rows.append(DatasetInfo(item.name, "benchmark", item.expected, item.description))
    return rows


def expand_dataset(spec: str) -> list[str]:
    """Split a spec that stands for several data sets into one spec per result row."""
    if spec.lower() == SYNTHETIC:
        return [f"{SYNTHETIC}/{name}" for name in TEST_SPLITS]
    return [spec]


def open_dataset(
    spec: str,
    root: Path | str | None = None,
    *,
    limit: int | None = None,
    size: int = DEFAULT_SIZE,
    allow_missing: bool = False,
) -> Dataset:
    """Open a data set with masks.

    spec: a name from `list_datasets` in any case, or the path of a folder (also below root).
    root: the folder that holds the benchmarks; needed for their names only.
    limit: use at most so many images (spread evenly over parts and folders).
    size: side of synthetic images; files keep their own size.
    allow_missing: skip files that cannot be paired, with a note, instead of raising DataError.
    """
    check_limit(limit)
    known = spec.lower()
    if known == SYNTHETIC:
        return _joined_tests(size, limit)
    if known.startswith(f"{SYNTHETIC}/"):
        split = known.split("/", 1)[1]
        if split in SPLITS:
            return CamoSynth(split, size=size, limit=limit)
        raise _unknown(spec)
    benchmark = benchmark_named(spec)
    if benchmark is not None and root is not None:
        return find_dataset(benchmark.name, root, limit=limit, allow_missing=allow_missing)
    for path in (Path(spec), *([Path(root) / spec] if root is not None else [])):
        if path.is_dir():
            return ImageMaskFolder(path, limit=limit, allow_missing=allow_missing)
    if benchmark is not None:
        raise DataError(
            f"{benchmark.name} is read from disk; give the root folder that holds it "
            f"(e.g. one with TestDataset/{benchmark.name})"
        )
    raise _unknown(spec)


def _joined_tests(size: int, limit: int | None) -> JoinedDataset:
    """Join the test splits; a limit is shared evenly, earlier splits get the remainder."""
    parts: list[Dataset] = []
    for position, name in enumerate(TEST_SPLITS):
        share = None
        if limit is not None:
            share = (limit + len(TEST_SPLITS) - 1 - position) // len(TEST_SPLITS)
        if share != 0:
            parts.append(CamoSynth(name, size=size, limit=share))
    return JoinedDataset(SYNTHETIC, parts)


def _unknown(spec: str) -> DataError:
    names = [row.name for row in list_datasets()]
    by_key = {name.lower(): name for name in names}
    # A bare split name ("test-easy") should find its full one as well.
    by_key.update({name.split("/", 1)[1]: name for name in names if "/" in name})
    near = difflib.get_close_matches(spec.lower(), by_key, n=1, cutoff=0.4)
    hint = f" (did you mean {by_key[near[0]]!r}?)" if near else ""
    return DataError(
        f"unknown data set {spec!r}{hint}; accepted: {', '.join(names)}, or an existing folder"
    )
