"""Pictures to try: what comes with the package, as the bytes of image files in memory."""

from __future__ import annotations

from dataclasses import dataclass

from codtdq.data.datasets import SAMPLES_DIR
from codtdq.imagefile import list_image_files


@dataclass(frozen=True)
class SamplePicture:
    """A name for people, and the bytes of a JPEG."""

    name: str
    data: bytes


def sample_pictures() -> list[SamplePicture]:
    """The sample pictures of the package: compositions that hide something, and a photograph."""
    files = [*list_image_files(SAMPLES_DIR / "Imgs"), *list_image_files(SAMPLES_DIR)]
    return [SamplePicture(file.stem, file.read_bytes()) for file in files]
