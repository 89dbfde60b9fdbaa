"""What a training run is: one frozen, strict, JSON-able description."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codtdq.errors import ConfigError

SYNTHETIC_KINDS = {"camosynth": "train", "camosynth-warmup": "warmup"}  # source -> split
SOURCE_KINDS = (*SYNTHETIC_KINDS, "compose", "pairs")
# these say how a session runs, not what the run computes, so a resumed session may change them
SESSION_FIELDS = frozenset({"threads", "workers", "val_every", "save_every", "log_every"})
# accepted JSON types by annotation; bool is an int to isinstance, so exact types are compared
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "str | None": (str, type(None)),
    "tuple[str, ...]": (list, tuple),
}


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """One source of training images, with the share of samples that it gives."""

    kind: str  # one of SOURCE_KINDS
    path: str | None = None  # folder; camosynth has none
    weight: float = 1.0  # sampling weight relative to the other sources
    holdout: int = 0  # pairs only: images kept out of training for validation

    def __post_init__(self) -> None:
        if self.kind not in SOURCE_KINDS:
            raise ConfigError(
                f"training source {self.kind!r} is unknown; accepted: {', '.join(SOURCE_KINDS)}"
            )
        synthetic = self.kind in SYNTHETIC_KINDS
        if (self.path is None) != synthetic:
            need = "takes no folder" if synthetic else "needs a folder"
            raise ConfigError(
                f"training source {self.kind!r} {need}; write camosynth:WEIGHT, "
                "compose:FOLDER:WEIGHT or pairs:FOLDER:WEIGHT"
            )
        if not 0.0 < self.weight < float("inf"):
            raise ConfigError(f"weight of source {self.kind!r} is {self.weight}; it must be > 0")
        if self.holdout < 0 or (self.holdout and self.kind != "pairs"):
            raise ConfigError(
                f"holdout of source {self.kind!r} is {self.holdout}; it must be >= 0, "
                "and only pairs sources have one"
            )

    @property
    def name(self) -> str:
        """A short name without directories, for logs and model cards."""
        return self.kind if self.path is None else f"{self.kind}-{Path(self.path).name}"


def parse_source(text: str, *, holdout: int = 0) -> SourceSpec:
    """Read `camosynth[:WEIGHT]`, `compose:FOLDER[:WEIGHT]` or `pairs:FOLDER[:WEIGHT]`."""
    kind, _, rest = text.partition(":")
    head, _, tail = rest.rpartition(":")
    weight, path = 1.0, rest
    try:
        weight, path = float(tail), head
    except ValueError:
        pass  # the last part is a piece of the path, not a weight
    return SourceSpec(
        kind=kind, path=path or None, weight=weight, holdout=holdout if kind == "pairs" else 0
    )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of one run. Two runs with equal settings (and threads) give equal weights."""

    model: str
    sources: tuple[SourceSpec, ...]
    steps: int
    batch_size: int = 16
    size: int  # square side of the training images in pixels
    loss: str  # name in codtdq.lab.training.losses.LOSSES
    lr: float = 8e-4
    final_lr: float = 0.01  # end of the cosine, as a fraction of lr
    weight_decay: float = 0.02
    warmup: int = 200
    grad_clip: float = 1.0
    ema: float = 0.999  # decay of the averaged weights; 0 switches the average off
    seed: int = 0
    init: str | None = None  # checkpoint to start from; fresh weights without it
    encoder: str | None = None  # checkpoint of the network's child `encoder` alone
    # patterns of parameter names, as in a shell: these keep their values; those learn slower
    frozen: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    slow_lr: float = 0.1  # learning rate of slow parameters, as a fraction of the others'
    bfloat16: bool = False  # products of the forward and backward pass in bfloat16
    channels_last: bool = False
    synth_reuse: float = 4.0  # mean number of uses of each generated camosynth image
    val_images: int = 64  # camosynth validation images
    val_every: int = 500
    save_every: int = 250
    log_every: int = 20
    threads: int = 1
    workers: int = 1  # background processes that prepare batches; 0 prepares them inline

    def __post_init__(self) -> None:
        for field in ("sources", "frozen", "slow"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        if not self.sources:
            raise ConfigError("no training source; give at least one, e.g. camosynth:1")
        for field in ("steps", "batch_size", "size", "val_every", "save_every", "log_every"):
            self._check(field, getattr(self, field) >= 1, "at least 1")
        for field in ("warmup", "workers", "val_images", "seed", "weight_decay"):
            self._check(field, getattr(self, field) >= 0, "at least 0")
        self._check("threads", self.threads >= 1, "at least 1")
        self._check("lr", self.lr > 0, "above 0")
        self._check("grad_clip", self.grad_clip > 0, "above 0")
        self._check("synth_reuse", self.synth_reuse >= 1, "at least 1")
        self._check("slow_lr", 0 < self.slow_lr <= 1, "in (0, 1]")
        if self.init is not None and self.encoder is not None:
            raise ConfigError("init and encoder are both given; init holds an encoder, keep one")
        self._check("ema", 0 <= self.ema < 1, "in [0, 1)")
        self._check("final_lr", 0 <= self.final_lr <= 1, "in [0, 1]")

    def _check(self, field: str, valid: bool, accepted: str) -> None:
        if not valid:
            raise ConfigError(f"{field} is {getattr(self, field)}; it must be {accepted}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; `from_dict` is the inverse."""
        data = dataclasses.asdict(self)
        data["sources"] = [dataclasses.asdict(source) for source in self.sources]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainConfig:
        """Read what `to_dict` gave: unknown and missing keys raise `ConfigError`."""
        fields = dict(data)
        sources = fields.get("sources")
        if not isinstance(sources, list | tuple):
            raise ConfigError(f"training config: sources is {sources!r}; it must be a list")
        fields["sources"] = tuple(_strict(SourceSpec, item) for item in sources)
        config: TrainConfig = _strict(cls, fields)
        return config

    def first_difference(self, other: TrainConfig) -> str | None:
        """The first field, other than session fields, whose value differs; None if none does."""
        for field in dataclasses.fields(self):
            same = getattr(self, field.name) == getattr(other, field.name)
            if field.name not in SESSION_FIELDS and not same:
                return field.name
        return None


def load_config(path: Path) -> TrainConfig:
    """Read a config that a run has saved."""
    try:
        return TrainConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"cannot read the training config {path}: {reason}") from error


def _strict(cls: type[Any], data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{cls.__name__}: found {data!r}; a table of settings is needed")
    known = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ConfigError(
            f"{cls.__name__}: unknown setting {unknown[0]!r}; accepted: {', '.join(known)}"
        )
    required = [name for name, field in known.items() if field.default is dataclasses.MISSING]
    missing = [name for name in required if name not in data]
    if missing:
        raise ConfigError(f"{cls.__name__}: setting {missing[0]!r} is missing; add it")
    for name, value in data.items():
        accepted = _JSON_TYPES.get(str(known[name].type))
        if accepted is not None and type(value) not in accepted:
            raise ConfigError(f"{cls.__name__}: {name} is {value!r}; accepted: {known[name].type}")
    return cls(**data)
