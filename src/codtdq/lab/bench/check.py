"""Names and numbers are checked before anything runs; a wrong one is one line with what is near."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from codtdq.data import expand_dataset, list_datasets, open_dataset
from codtdq.data.benchmarks import benchmark_named
from codtdq.errors import ConfigError
from codtdq.models import check_installed, list_models, model_info


def known_names(kind: str, names: Sequence[str], accepted: Sequence[str]) -> list[str]:
    """The names without repetition, or ConfigError with close matches for the first unknown one."""
    if not names:
        raise ConfigError(f"no {kind} given; accepted: {', '.join(accepted)}")
    for name in names:
        if name not in accepted:
            close = difflib.get_close_matches(name, accepted, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(close)}?" if close else "none is close"
            raise ConfigError(f"unknown {kind} {name!r}; {hint} (known: {', '.join(accepted)})")
    return list(dict.fromkeys(names))


def check_weights(
    models: Iterable[str], checkpoints: Mapping[str, str | Path], untrained: bool
) -> dict[str, str]:
    """Every model has weights and can be built; returns the given files as absolute paths."""
    for name, file in checkpoints.items():
        known_names("model", [name], list_models())
        if not Path(file).is_file():
            raise ConfigError(f"--checkpoint {name}={file}: no such file")
    for name in models:
        check_installed(name)
        if name not in checkpoints and model_info(name).weights is None and not untrained:
            raise ConfigError(
                f"no weights of {name} come with the package; pass --checkpoint {name}=FILE, or "
                "--untrained to try it with random ones"
            )
    return {name: str(Path(file).resolve()) for name, file in checkpoints.items()}


def open_all(
    specs: Sequence[str], root: str | None, limit: int | None
) -> tuple[dict[str, str], dict[str, int]]:
    """Open every data set once; returns where each is and how long, by its name in rows."""
    if not specs:
        raise ConfigError("no data set given; see `codtdq list datasets`")
    canonical = {row.name.lower(): row.name for row in list_datasets()}
    sources: dict[str, str] = {}
    images: dict[str, int] = {}
    for spec in (part for given in specs for part in expand_dataset(given)):
        name = canonical.get(spec.lower(), spec)
        if root is None and benchmark_named(spec) is not None:
            name = f"./{spec}"  # a folder that only goes by the name of a benchmark
        images[name] = len(open_dataset(spec, root, limit=limit))
        # A worker on another machine has another working directory.
        known = name in canonical.values()
        sources[name] = spec if known or not Path(spec).is_dir() else str(Path(spec).resolve())
    return sources, images


def at_least_one(what: str, value: int | None) -> None:
    """Refuse zero and negative numbers."""
    if value is not None and value < 1:
        raise ConfigError(f"{what} is {value}; accepted: 1 or more")
