"""The C example and the pictures that it reads and writes."""

from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "c" / "mask.c"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")


def write_ppm(path, image):
    """RGB bytes [H, W, 3] as a binary PPM file with a comment."""
    height, width = image.shape[:2]
    path.write_bytes(b"P6\n# a comment\n%d %d\n255\n" % (width, height) + image.tobytes())


def read_pgm(path):
    """Bytes [H, W] of a binary PGM file."""
    kind, size, _, data = path.read_bytes().split(b"\n", 3)
    width, height = map(int, size.split())
    assert kind == b"P5"
    return np.frombuffer(data, np.uint8).reshape(height, width)
