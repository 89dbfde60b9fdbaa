"""The four public camouflaged-object benchmarks, found by name below one folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from codtdq.data.folder import ImageMaskFolder, child_folders, find_layout
from codtdq.errors import DataError

TEST_FOLDERS = ("testdataset", "test")  # as SINet and COD10K name the folder of test sets
_WRAPPERS = ("dataset", "datasets", "data")


@dataclass(frozen=True)
class Benchmark:
    """One public test set.

    expected: number of test images that published results use.
    prefix: only file names that start with it belong to the set ("" keeps all).
    """

    name: str
    expected: int
    description: str
    prefix: str = ""


BENCHMARKS: dict[str, Benchmark] = {
    item.name: item
    for item in (
        Benchmark("CAMO", 250, "camouflaged animals and people, test part"),
        Benchmark("CHAMELEON", 76, "small set of camouflaged animals"),
        # COD10K also ships images without camouflage; published results leave them out.
        Benchmark("COD10K", 2026, "test part, camouflaged images only", prefix="COD10K-CAM-"),
        Benchmark("NC4K", 4121, "largest set, for testing only"),
    )
}


def benchmark_named(name: str) -> Benchmark | None:
    """Look a benchmark up by name in any case; None if there is none."""
    return next((item for item in BENCHMARKS.values() if item.name.lower() == name.lower()), None)


def find_dataset(
    name: str, root: Path | str, *, limit: int | None = None, allow_missing: bool = False
) -> ImageMaskFolder:
    """Open the test images of a benchmark below `root`.

    Looks for a folder named like the set, or `<name>-test`, in root itself and below its
    TestDataset/ or Test/ folder, in any case and in both layouts; `<name>-train` is not taken.
    A count other than the published one is reported in the data set's notes.
    """
    benchmark = benchmark_named(name)
    if benchmark is None:
        raise DataError(f"unknown benchmark {name!r}; choose one of {', '.join(BENCHMARKS)}")
    top = Path(root)
    if not top.is_dir():
        raise DataError(f"{top}: no such folder; give the folder that holds {benchmark.name}")
    candidates = _candidates(benchmark.name, top)
    if not candidates:
        inside = ", ".join(path.name for path in child_folders(top).values()) or "none"
        raise DataError(
            f"{benchmark.name} not found below {top} (folders there: {inside}); expected e.g. "
            f"TestDataset/{benchmark.name}/Imgs and GT, or Test/{benchmark.name}/Image and "
            "GT_Object"
        )
    data = ImageMaskFolder(
        candidates[0],
        name=benchmark.name,
        keep=(lambda stem: stem.startswith(benchmark.prefix)) if benchmark.prefix else None,
        limit=limit,
        allow_missing=allow_missing,
    )
    if data.found != benchmark.expected:
        data.notes.append(
            f"{benchmark.name}: {data.found} images found, {benchmark.expected} expected; results "
            "are not comparable with published ones"
        )
    for other in candidates[1:]:
        data.notes.append(f"{benchmark.name}: used {candidates[0]}, ignored {other}")
    return data


def _candidates(name: str, top: Path) -> list[Path]:
    """Folders with a known layout that hold the set, the most explicit test folder first."""
    pattern = re.compile(rf"{re.escape(name)}(-v\d+)?([-_ ]?test)?", re.IGNORECASE)
    wrappers = [top, *(path for key, path in child_folders(top).items() if key in _WRAPPERS)]
    test_roots = [inner for path in wrappers for inner in _test_folders(path)]
    named = [
        path
        for base in (*test_roots, *wrappers)
        for path in child_folders(base).values()
        if pattern.fullmatch(path.name)
    ]
    if pattern.fullmatch(top.resolve().name):  # the root is the set itself
        named.append(top)
    nested = [inner for path in named for inner in (*_test_folders(path), path)]
    found = [path for path in nested if find_layout(path) is not None]
    # A name that ends in "test" says most clearly what it is; otherwise the order above decides.
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda path: not path.name.lower().endswith("test"))


def _test_folders(path: Path) -> list[Path]:
    folders = child_folders(path)
    return [folders[key] for key in TEST_FOLDERS if key in folders]
