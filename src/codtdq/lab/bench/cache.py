"""Data sets as a run reads them: synthetic images made once for all methods, contents hashed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from codtdq.data import CamoSynth, Dataset, Sample, open_dataset, open_images
from codtdq.data.dataset import checked_index

# A larger set is made anew each time: a cache must not fill the disk.
CACHE_BYTES = 1 << 30


class CachedSynth:
    """A synthetic data set whose images are kept in one sparse file that workers share.

    The file holds [N] images with masks, then [N] flags. Content depends on the index alone, so
    two workers that make the same image write the same bytes and need no lock. It is read with
    `pread`, not mapped: mapped pages would count as memory of the model under test.
    """

    def __init__(self, dataset: CamoSynth, directory: Path) -> None:
        self._dataset = dataset
        self.name, self.notes = dataset.name, dataset.notes
        self._side = dataset.size
        self._bytes = 4 * dataset.size**2  # three colours and the mask
        self._names = dataset.names()
        file = f"{dataset.version}-{dataset.split}-{dataset.size}-{len(dataset)}.raw"
        self._file = os.open(directory / file, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self._file, size_of(dataset))

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Sample:
        index = checked_index(index, len(self))
        flag = len(self) * self._bytes + index
        if os.pread(self._file, 1, flag) == b"\1":
            pixels = np.frombuffer(os.pread(self._file, self._bytes, index * self._bytes), np.uint8)
            image, mask = np.split(pixels, [3 * self._side**2])
            shape = (self._side, self._side)
            return Sample(self._names[index], image.reshape(*shape, 3), mask.reshape(shape))
        sample = self._dataset[index]
        assert sample.mask is not None
        os.pwrite(self._file, sample.image.tobytes() + sample.mask.tobytes(), index * self._bytes)
        os.pwrite(self._file, b"\1", flag)
        return sample

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def names(self) -> list[str]:
        """Return the names of all images in order."""
        return self._names


class Shard:
    """A range of a data set, which notes a hash of every image and mask it hands out."""

    def __init__(self, dataset: Dataset, start: int, stop: int) -> None:
        self._dataset, self._range = dataset, range(start, min(stop, len(dataset)))
        self.name, self.notes = dataset.name, dataset.notes
        self._hashes: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: int) -> Sample:
        sample = self._dataset[self._range[checked_index(index, len(self))]]
        digest = hashlib.sha256(sample.image.tobytes())
        if sample.mask is not None:
            digest.update(sample.mask.tobytes())
        self._hashes[index] = digest.hexdigest()
        return sample

    def names(self) -> list[str]:
        """Return the names of the range."""
        names = self._dataset.names()
        return [names[index] for index in self._range]

    def hashes(self) -> list[str]:
        """One hash per image, in order; images that a resumed run never read are read now."""
        for index in range(len(self)):
            if index not in self._hashes:
                self[index]
        return [self._hashes[index] for index in range(len(self))]


def open_cached(
    spec: str, root: str | None, limit: int | None, cache: Path | None = None, *, masks: bool = True
) -> Dataset:
    """Open a data set, through the cache if it is synthetic and `cache` is there to be used.

    masks: False takes a folder of images without masks as well.
    """
    dataset = (open_dataset if masks else open_images)(spec, root, limit=limit)
    if not isinstance(dataset, CamoSynth) or cache is None or not cache.is_dir():
        return dataset
    return dataset if size_of(dataset) > CACHE_BYTES else CachedSynth(dataset, cache)


def size_of(dataset: CamoSynth) -> int:
    """Return the bytes of the cache file of a data set: pixels, masks and flags."""
    return len(dataset) * (4 * dataset.size**2 + 1)
