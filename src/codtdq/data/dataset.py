"""What every data set offers, and two small pieces that several of them share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from codtdq.data.sample import Sample
from codtdq.errors import DataError


@runtime_checkable
class Dataset(Protocol):
    """A named, ordered, finite collection of samples.

    name: what reports call it. notes: what a reader of results should know (counts, skipped files).
    """

    name: str
    notes: list[str]

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; IndexError past the end, so plain iteration works."""
        ...

    def names(self) -> list[str]:
        """Return the names of all samples in order, without decoding an image."""
        ...


class JoinedDataset:
    """Several data sets one after the other, under one name."""

    def __init__(self, name: str, parts: Sequence[Dataset]) -> None:
        self.name = name
        self.parts = list(parts)
        self.notes = [note for part in self.parts for note in part.notes]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, index: int) -> Sample:
        offset = checked_index(index, len(self))
        for part in self.parts:
            if offset < len(part):
                return part[offset]
            offset -= len(part)
        raise AssertionError("checked_index bounds the offset")

    def names(self) -> list[str]:
        """Return the names of all samples in order."""
        return [name for part in self.parts for name in part.names()]


def checked_index(index: int, length: int) -> int:
    """Resolve a possibly negative index; IndexError outside the data set."""
    position = index + length if index < 0 else index
    if not 0 <= position < length:
        raise IndexError(f"index {index} is outside a data set of {length} samples")
    return position


def check_limit(limit: int | None) -> None:
    """Raise DataError unless `limit` is None or a positive number of samples."""
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; give 1 or more, or leave it out to use every image")
