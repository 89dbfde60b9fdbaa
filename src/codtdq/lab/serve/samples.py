"""Pictures to try: what comes with the package, as the bytes of PNG files in memory."""

from __future__ import annotations

from dataclasses import dataclass

from codtdq.data import open_dataset
from codtdq.data.splits import TEST_SPLITS
from codtdq.evaluation.masks_to_files import encoded


@dataclass(frozen=True)
class SamplePicture:
    """A name for people, and the bytes of a PNG."""

    name: str
    data: bytes


def sample_pictures() -> list[SamplePicture]:
    """Synthetic scenes, one of each difficulty."""
    found = []
    for split in TEST_SPLITS:
        sample = open_dataset(f"camosynth/{split}", limit=1)[0]
        name = f"synthetic, {split.removeprefix('test-')}"
        found.append(SamplePicture(name, encoded(sample.image)))
    return found
