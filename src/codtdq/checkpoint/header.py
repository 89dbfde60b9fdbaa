"""`codtdq.json`: its seal, and the type of everything in it, checked before anything is built.

The seal is the sha256 of the content in canonical form (sorted keys, no spaces), so that a file
that was laid out anew still holds, and one whose content changed does not.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from codtdq._version import __version__
from codtdq.errors import CheckpointError
from codtdq.planning.plan import COUNTED

FORMAT_VERSION = 3
SEAL = "header_sha256"
_HEX = re.compile(r"[0-9a-f]{64}")
_LARGEST_NUMBER = 2**53  # beyond, JSON numbers are not exact everywhere
_DEEPEST = 24  # levels of a JSON document
_SITE_TEXTS = ("name", "type", "kind", "role", "reason", "weight_format", "act_format")


def seal(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The header with the hash of its content."""
    # through JSON once, so that what is hashed is what a reader parses
    return {**meta, SEAL: _digest(json.loads(json.dumps(meta)))}


def to_text(meta: Mapping[str, Any]) -> str:
    """The header as it is written."""
    return json.dumps(meta, separators=(",", ":")) + "\n"


def _digest(parsed: Mapping[str, Any]) -> str:
    """Hash of what was parsed from JSON."""
    content = {key: value for key, value in parsed.items() if key != SEAL}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def parse(data: bytes, path: Path) -> dict[str, Any]:
    """The header in some bytes, its version, seal and types checked."""
    try:
        meta = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(meta, dict):
        raise CheckpointError(f"{path} is damaged: expected a JSON object")
    check_version(meta, path)
    if _depth(meta) > _DEEPEST:
        raise CheckpointError(f"{path} is damaged: more than {_DEEPEST} levels of JSON")
    found = _digest(meta)
    if meta.get(SEAL) != found:
        raise CheckpointError(
            f"{path} was changed or is damaged: the sha256 of its content is {found[:12]}..., "
            f"its field {SEAL} says {str(meta.get(SEAL))[:12]}..."
        )
    check(meta, path)
    return meta


def check_version(meta: Mapping[str, Any], path: Path) -> None:
    """Refuse a format that this version does not read."""
    version = meta.get("format")
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{path} has no format version")
    if version != FORMAT_VERSION:
        newer = version > FORMAT_VERSION
        raise CheckpointError(
            f"{path} has format version {version}; this codtdq {__version__} reads "
            f"{FORMAT_VERSION}: {'upgrade codtdq' if newer else 'quantize the model again'}"
        )


def check(meta: Mapping[str, Any], path: Path) -> None:
    """Check the type of every field that is used to build a model."""
    missing = set(_FIELDS) - set(meta)
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(sorted(missing))}")
    extra = set(meta) - set(_FIELDS)
    if extra:
        raise CheckpointError(f"{path} has unknown fields: {', '.join(sorted(extra))[:80]}")
    for name, test in _FIELDS.items():
        accepted = test(meta[name])
        if accepted is not None:
            raise CheckpointError(f"{path} is damaged: {name} is not {accepted}")


def _depth(value: Any) -> int:
    """Levels of a JSON document, found without recursion."""
    level, here = 0, [value]
    while here:
        level += 1
        below: list[Any] = []
        for item in here:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        here = below
    return level


Test = Callable[[Any], str | None]  # what is accepted, if not that


def _version(value: Any) -> str | None:
    return None if type(value) is int else "a whole number"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "a text"


def _hash(value: Any) -> str | None:
    return None if isinstance(value, str) and _HEX.fullmatch(value) else "a sha256"


def _object(value: Any) -> str | None:
    return None if isinstance(value, dict) else "an object"


def _texts(value: Any) -> str | None:
    sound = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    return None if sound else "an object of texts"


def is_count(value: Any) -> bool:
    """A whole number that any field may hold."""
    return type(value) is int and 0 <= value <= _LARGEST_NUMBER


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST_NUMBER and math.isfinite(value)


def _sides(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 8 and all(map(is_count, value))


def _shapes(value: Any) -> str | None:
    sound = isinstance(value, dict) and all(map(_sides, value.values()))
    return None if sound else "an object of shapes"


def _operators(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "an object of operators"
    for name, entry in value.items():
        sound = isinstance(entry, dict) and set(entry) == {"input", "weight", "bias"}
        if sound:
            sides = isinstance(entry["input"], dict) and isinstance(entry["weight"], dict)
            sound = sides and isinstance(entry["bias"], bool)
        if not sound:
            return f"an object of operators with input, weight and bias ({name[:60]!r} is none)"
    return None


def _plan(value: Any) -> str | None:
    known = {"sites", "other_parameters", "parameters", "totals"}
    sound = isinstance(value, dict) and known <= set(value) <= known | set(COUNTED)
    if not sound or not isinstance(value["sites"], list):
        return f"an object of {', '.join(sorted(known))}"
    counts = {"other_parameters", "parameters"} | set(COUNTED) & set(value)
    if not all(is_count(value[key]) for key in counts):
        return "a plan: its counts of parameters or bytes are no whole numbers"
    names = set()
    for site in value["sites"]:
        reason = _site(site)
        if reason is not None:
            return f"a plan: a site {reason}"
        names.add(site["name"])
    return None if len(names) == len(value["sites"]) else "a plan: a site is named twice"


def _site(site: Any) -> str | None:
    if not isinstance(site, dict) or not {"name", "type", "kind", "role", "shape"} <= set(site):
        return "lacks name, type, kind, role or shape"
    if not all(isinstance(site[key], str) for key in _SITE_TEXTS if key in site):
        return f"has a field of {', '.join(_SITE_TEXTS)} that is no text"
    if not _sides(site["shape"]) or not is_count(site.get("inputs")):
        return "has a shape or inputs that are no whole numbers"
    if not is_count(site.get("extra_parameters", 0)):
        return "has extra_parameters that are no whole number"
    if not all(isinstance(site.get(key, False), bool) for key in ("static", "exact")):
        return "has a flag that is neither true nor false"
    if not all(_is_number(site.get(key, 0)) for key in ("weight_cost", "act_cost")):
        return "has a cost that is no number"
    if not all(isinstance(site.get(key, {}), dict) for key in ("weight", "activation")):
        return "has a weight or activation that is no object"
    return None


def _run(value: Any) -> str | None:
    known = {"info", "seed", "budget", "steps", "calibration_images", "bits", "notes"}
    if not isinstance(value, dict) or set(value) != known:
        return f"an object of {', '.join(sorted(known))}"
    if not all(isinstance(value[key], dict) for key in ("info", "bits", "notes")):
        return "a run: info, bits and notes are objects"
    if not is_count(value["steps"]) or not is_count(value["calibration_images"]):
        return "a run: steps and calibration_images are whole numbers"
    if type(value["seed"]) is not int or not isinstance(value["budget"], str):
        return "a run: seed is a whole number, budget a text"
    return None if all(map(_is_number, value["bits"].values())) else "a run: bits are numbers"


_FIELDS: dict[str, Test] = {
    "format": _version,
    "codtdq": _text,
    "architecture": _text,
    "versions": _texts,
    "config": _object,
    "plan": _plan,
    "operators": _operators,
    "run": _run,
    "floats": _shapes,
    "aliases": _texts,
    "weights": _text,
    "sha256": _hash,
    SEAL: _hash,
}
