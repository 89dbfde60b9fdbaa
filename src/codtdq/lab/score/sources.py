"""What is to be scored: folders of maps and masks, named on the command line or in JSON files.

The JSON files are those of PySODEvalToolkit: data set -> {"mask": {"path", "prefix", "suffix"}} and
method -> data set -> {"path", "prefix", "suffix"}. The name of an image is what stands between
prefix and suffix; the suffix holds the extension.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codtdq.data.benchmarks import benchmark_named
from codtdq.data.folder import child_folders
from codtdq.data.mask_folders import mask_folders
from codtdq.errors import DataError
from codtdq.imagefile import list_image_files


@dataclass(frozen=True)
class Files:
    """The files `<prefix><name><suffix>` of a folder; without a suffix, of any image type."""

    folder: Path
    prefix: str = ""
    suffix: str = ""

    def by_name(self) -> dict[str, Path]:
        """Return the files by the name of their image, sorted."""
        found: dict[str, Path] = {}
        for path in list_image_files(self.folder):
            end = self.suffix or path.suffix
            if not (path.name.startswith(self.prefix) and path.name.endswith(end)):
                continue
            name = path.name[len(self.prefix) : len(path.name) - len(end)]
            if name in found:
                raise DataError(
                    f"{found[name]} and {path} are both the map of {name!r}; remove one of them"
                )
            found[name] = path
        if not found:
            form = f"{self.prefix}*{self.suffix}" if self.prefix or self.suffix else "image"
            raise DataError(f"{self.folder}: holds no {form} file; check the folder")
        return found


@dataclass(frozen=True)
class Sources:
    """Masks by data set, maps by method and data set, and what was left aside."""

    masks: dict[str, Files]
    maps: dict[str, dict[str, Files]]
    notes: list[str] = field(default_factory=list)


def of_folders(predictions: Sequence[str], truths: Sequence[str]) -> Sources:
    """Read `[NAME=]DIR` words: folders of maps per method, folders of masks per data set.

    With several data sets, or one whose name a folder inside the maps has, maps lie in a folder per
    data set.
    """
    masks: dict[str, Files] = {}
    for word in truths:
        name, folder = _named_folder(word)
        found = mask_folders(folder)
        if name is not None and len(found) == 1:
            found = {name: next(iter(found.values()))}
        for dataset, path in found.items():
            if dataset in masks:
                raise DataError(
                    f"{masks[dataset].folder} and {path} are both called {dataset!r}; "
                    "name them: --gt NAME=DIR"
                )
            masks[dataset] = Files(path)
    maps: dict[str, dict[str, Files]] = {}
    for word in predictions:
        name, folder = _named_folder(word)
        method = name or _method_name(folder, masks)
        if method in maps:
            raise DataError(f"two methods are called {method!r}; name them: --pred NAME=DIR")
        maps[method] = _maps_per_dataset(folder, list(masks))
    return Sources(masks, maps)


def _method_name(folder: Path, datasets: Iterable[str]) -> str:
    """A folder called like a data set holds maps of the method around it."""
    folder = folder.resolve()
    own = folder.name.lower() in {name.lower() for name in datasets}
    return folder.parent.name if own else folder.name


def _named_folder(word: str) -> tuple[str | None, Path]:
    """Split NAME=DIR; a folder that exists under the whole word is that folder."""
    name, separator, rest = word.partition("=")
    named = bool(separator) and not Path(word).is_dir()
    folder = Path(rest if named else word)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    return (name if named else None), folder


def _maps_per_dataset(folder: Path, datasets: Sequence[str]) -> dict[str, Files]:
    below = child_folders(folder)
    found = {name: Files(below[name.lower()]) for name in datasets if name.lower() in below}
    if len(datasets) == 1 and not found:
        return {datasets[0]: Files(folder)}
    if not found:
        have = ", ".join(path.name for path in below.values()) or "none"
        raise DataError(
            f"{folder}: needs a folder of maps per data set ({', '.join(datasets)}); found: {have}"
        )
    return found


def of_json(dataset_files: Sequence[str], method_files: Sequence[str]) -> Sources:
    """Read PySODEvalToolkit's files.

    A path is taken from the working directory or, where it is not there, from the file's folder.
    """
    masks: dict[str, Files] = {}
    for file in dataset_files:
        for name, entry in _read(file).items():
            if isinstance(entry, Mapping) and "mask" in entry:
                masks[name] = _files(entry["mask"], file, f"{name}.mask")
            else:
                raise DataError(
                    f"{file}: {name} has no 'mask'; expected {{'mask': {{'path': DIR}}}}"
                )
    maps: dict[str, dict[str, Files]] = {}
    notes: list[str] = []
    for file in method_files:
        for method, entries in _read(file).items():
            if not isinstance(entries, Mapping):
                raise DataError(f"{file}: {method} is no mapping of data sets; check the file")
            given = {name: entry for name, entry in entries.items() if entry is not None}
            odd = [name for name in given if name not in masks]
            if odd:
                notes.append(f"{method}: no masks are given for {', '.join(odd)}; left out")
            maps[method] = {
                name: _files(given[name], file, f"{method}.{name}")
                for name in masks
                if name in given
            }
    for method in [name for name, found in maps.items() if not found]:
        notes.append(f"{method}: no maps on {', '.join(masks)}; left out")
        del maps[method]
    if not maps:
        raise DataError(f"no method has maps on {', '.join(masks)}; check the names in both files")
    return Sources(masks, maps, notes)


def _read(file: str) -> dict[str, Any]:
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: not JSON ({error})") from error
    if not isinstance(content, dict) or not content:
        raise DataError(f"{file}: expected a JSON object with one entry per data set or method")
    return content


def _files(entry: Any, file: str, where: str) -> Files:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("path"), str):
        raise DataError(
            f"{file}: {where} has no 'path'; expected {{'path': DIR, 'suffix': '.png'}}"
        )
    given = Path(entry["path"])
    candidates = (given, Path(file).parent / given)
    folder = next((path for path in candidates if path.is_dir()), None)
    if folder is None:
        raise DataError(f"{file}: {where} is at {given}, which is no folder")
    return Files(folder, entry.get("prefix") or "", entry.get("suffix") or "")


def chosen(
    sources: Sources, *, datasets: Sequence[str] = (), methods: Sequence[str] = ()
) -> Sources:
    """Only some data sets and methods, in the order given; none named means all."""
    masks = _pick(sources.masks, datasets, "data set")
    maps = {
        method: {name: files for name, files in given.items() if name in masks}
        for method, given in _pick(sources.maps, methods, "method").items()
    }
    return Sources(masks, maps, sources.notes)


def _pick(found: dict[str, Any], wanted: Sequence[str], what: str) -> dict[str, Any]:
    unknown = [name for name in wanted if name not in found]
    if unknown:
        raise DataError(f"no {what} {', '.join(unknown)}; there are: {', '.join(found)}")
    return {name: found[name] for name in wanted} if wanted else found


def published_part(dataset: str, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names that published results of a benchmark count, and notes on what differs.

    A data set of another name is taken whole.
    """
    benchmark = benchmark_named(dataset)
    if benchmark is None:
        return list(names), []
    kept = [name for name in names if name.startswith(benchmark.prefix)] or list(names)
    notes = []
    if len(kept) < len(names):
        notes.append(f"{dataset}: {len(names) - len(kept)} masks of another kind left out")
    if len(kept) != benchmark.expected:
        notes.append(
            f"{dataset}: {len(kept)} masks found, {benchmark.expected} expected; scores are not "
            "comparable with published ones"
        )
    return kept, notes
