"""Opening a data set by one word: a camosynth split, sample pictures, a benchmark or a folder."""

from __future__ import annotations

import difflib
import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from codtdq.data.benchmarks import BENCHMARKS, benchmark_named, find_dataset
from codtdq.data.camosynth import DEFAULT_SIZE, CamoSynth
from codtdq.data.dataset import Dataset, JoinedDataset, check_limit
from codtdq.data.folder import ImageMaskFolder
from codtdq.data.images import ImageFolder
from codtdq.data.splits import SPLITS, TEST_SPLITS
from codtdq.errors import DataError

SYNTHETIC = "camosynth"
SAMPLES = "samples"
SAMPLES_DIR = Path(__file__).parent / SAMPLES


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
    what = "three compositions of CC0 images, which come with the package"
    rows.append(DatasetInfo(SAMPLES, "pictures", 3, what))
    for item in BENCHMARKS.values():
        rows.append(DatasetInfo(item.name, "benchmark", item.expected, item.description))
    return rows


def expand_dataset(spec: str) -> list[str]:
    """Split a spec that stands for several data sets into one spec per result row."""
    names = split_names(spec)
    if len(names) > 1:
        return [name for part in names for name in expand_dataset(part)]
    if spec.lower() == SYNTHETIC:
        return [f"{SYNTHETIC}/{name}" for name in TEST_SPLITS]
    return [spec]


def split_names(spec: str) -> list[str]:
    """Split `NAME,NAME`; what exists under the whole name stays whole."""
    names = [name.strip() for name in spec.split(",") if name.strip()]
    return names if len(names) > 1 and not Path(spec).exists() else [spec]


def synthetic(name: str) -> bool:
    """Whether a name is one of camosynth's, whatever folders there are."""
    return name.lower().split("/", 1)[0] == SYNTHETIC


def open_dataset(
    spec: str,
    root: Path | str | None = None,
    *,
    limit: int | None = None,
    size: int = DEFAULT_SIZE,
    allow_missing: bool = False,
) -> Dataset:
    """Open a data set with masks.

    spec: a name from `list_datasets` in any case, or the path of a folder (also below root);
        several, with commas between them, are joined.
    root: the folder that holds the benchmarks; needed for their names only.
    limit: use the first so many images; of several data sets an even share of each.
    size: side of synthetic images; files keep their own size.
    allow_missing: skip files that cannot be paired, with a note, instead of raising DataError.
    """
    check_limit(limit)
    names = split_names(spec)
    known = spec.lower()
    if len(names) > 1 or known == SYNTHETIC:
        parts = names if len(names) > 1 else expand_dataset(SYNTHETIC)

        def opened(name: str, share: int | None) -> Dataset:
            return open_dataset(name, root, limit=share, size=size, allow_missing=allow_missing)

        return _joined(SYNTHETIC if known == SYNTHETIC else spec, parts, limit, opened)
    if known.startswith(f"{SYNTHETIC}/"):
        split = known.split("/", 1)[1]
        if split in SPLITS:
            return CamoSynth(split, size=size, limit=limit)
        raise _unknown(spec)
    if known == SAMPLES and not Path(spec).exists():
        return sample_pictures(limit=limit)
    benchmark = benchmark_named(spec)
    if benchmark is not None and root is not None:
        return find_dataset(benchmark.name, root, limit=limit, allow_missing=allow_missing)
    for path in (Path(spec), *([Path(root) / spec] if root is not None else [])):
        if path.is_dir():
            return ImageMaskFolder(path, limit=limit, allow_missing=allow_missing)
    if benchmark is not None:
        raise DataError(
            f"{benchmark.name} is read from disk; give the root folder that holds it "
            f"(--data-root; e.g. one with TestDataset/{benchmark.name})"
        )
    raise _unknown(spec)


def sample_pictures(*, limit: int | None = None) -> ImageMaskFolder:
    """The sample pictures of the package with their masks, whatever folders there are."""
    return ImageMaskFolder(SAMPLES_DIR, limit=limit)


def open_images(
    spec: str, root: Path | str | None = None, *, limit: int | None = None, size: int = DEFAULT_SIZE
) -> Dataset:
    """Open a data set for its images alone: what `open_dataset` takes, and any images.

    spec: also a folder of images, which needs no masks, one image, a glob pattern, or several of
        these with commas between them.
    """
    check_limit(limit)
    names = split_names(spec)
    if len(names) > 1:

        def opened(name: str, share: int | None) -> Dataset:
            return open_images(name, root, limit=share, size=size)

        return _joined(spec, names, limit, opened)
    if not synthetic(spec) and not (benchmark_named(spec) and root is not None):
        for path in (Path(spec), *([Path(root) / spec] if root is not None else [])):
            if path.exists() or glob.has_magic(str(path)):
                return ImageFolder(path, limit=limit)
    return open_dataset(spec, root, limit=limit, size=size)


def _joined(
    name: str, parts: Sequence[str], limit: int | None, opened: Callable[[str, int | None], Dataset]
) -> JoinedDataset:
    """Join data sets; a limit is shared evenly, earlier ones get the remainder."""
    found: list[Dataset] = []
    for position, part in enumerate(parts):
        share = None if limit is None else (limit + len(parts) - 1 - position) // len(parts)
        if share != 0:
            found.append(opened(part, share))
    return JoinedDataset(name, found)


def _unknown(spec: str) -> DataError:
    names = [row.name for row in list_datasets()]
    by_key = {name.lower(): name for name in names}
    # A bare split name ("test-easy") should find its full one as well.
    by_key.update({name.split("/", 1)[1]: name for name in names if "/" in name})
    near = difflib.get_close_matches(spec.lower(), by_key, n=1)
    hint = f" (did you mean {by_key[near[0]]!r}?)" if near else ""
    return DataError(
        f"unknown data set {spec!r}{hint}; accepted: {', '.join(names)}, or an existing folder"
    )
