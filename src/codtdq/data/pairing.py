"""Pairing images with masks by file stem, from headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codtdq.errors import DataError
from codtdq.imagefile import header_size

_SHOWN = 5  # names listed per problem; the count says how many there are

# Kinds of problem, in the order in which they are reported.
NO_MASK = "images without mask"
NO_IMAGE = "masks without image"
DUPLICATE = "names used by two files"
UNREADABLE = "unreadable files"
SIZE = "masks of another size than their image"


@dataclass(frozen=True)
class Pair:
    """An image file and the mask file of the same stem."""

    name: str
    image: Path
    mask: Path


def pair_files(
    images: Sequence[Path], masks: Sequence[Path]
) -> tuple[list[Pair], dict[str, list[str]]]:
    """Pair files by stem and read both headers.

    Returns the sound pairs sorted by name, and the names behind each kind of problem.
    """
    problems: dict[str, list[str]] = {
        kind: [] for kind in (NO_MASK, NO_IMAGE, DUPLICATE, UNREADABLE, SIZE)
    }
    image_of = _by_stem(images, problems)
    mask_of = _by_stem(masks, problems)
    problems[NO_MASK] = sorted(set(image_of) - set(mask_of))
    problems[NO_IMAGE] = sorted(set(mask_of) - set(image_of))
    pairs = []
    for name in sorted(set(image_of) & set(mask_of)):
        pair = Pair(name, image_of[name], mask_of[name])
        if _headers_agree(pair, problems):
            pairs.append(pair)
    return pairs, {kind: names for kind, names in problems.items() if names}


def describe_problems(problems: dict[str, list[str]]) -> str:
    """Say in one line how many files each problem has, and name the first few."""
    parts = []
    for kind, names in problems.items():
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        parts.append(f"{len(names)} {kind} ({shown})")
    return "; ".join(parts)


def _by_stem(files: Sequence[Path], problems: dict[str, list[str]]) -> dict[str, Path]:
    """Index files by stem; the first of two files with one stem wins and the clash is noted."""
    found: dict[str, Path] = {}
    for path in files:
        if path.stem in found:
            problems[DUPLICATE].append(path.name)
        else:
            found[path.stem] = path
    return found


def _headers_agree(pair: Pair, problems: dict[str, list[str]]) -> bool:
    sizes = []
    for path in (pair.image, pair.mask):
        try:
            sizes.append(header_size(path))
        except DataError:
            problems[UNREADABLE].append(path.name)
    if len(sizes) < 2:
        return False
    if sizes[0] != sizes[1]:
        (width, height), (mask_width, mask_height) = sizes
        problems[SIZE].append(f"{pair.name} {width}x{height} mask {mask_width}x{mask_height}")
        return False
    return True
