"""Makes the sample pictures of the package from CC0 images that scikit-image's wheel carries.

    python benchmarks/make_samples.py src/codtdq/data/samples

No photograph of a camouflage data set may be passed on, so these are compositions: a silhouette of
an animal, filled with a finer copy of a ground's texture in the colours of the ground, a little
darker and shaded from above. Their masks are exact. The cat is a photograph as it is, without one.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

SIDE = 448
QUALITY = 88
FINER = 3
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scene:
    """A ground and how the animal differs from it."""

    texture: str  # file of scikit-image: grey, 512 x 512
    coat: str  # texture of the animal, finer
    dark: tuple[int, int, int]  # colours of its darkest and its lightest grey
    light: tuple[int, int, int]
    gain: float  # brightness of the animal's coat
    height: int  # of the animal, in pixels
    place: tuple[int, int]  # its left upper corner
    mirrored: bool = False


SCENES = {
    "grass": Scene("grass", "grass", (18, 26, 8), (206, 210, 120), 0.8, 270, (60, 120)),
    "gravel": Scene("gravel", "gravel", (26, 23, 20), (228, 218, 204), 0.74, 290, (45, 90), True),
    "bricks": Scene("brick", "grass", (60, 26, 18), (230, 172, 142), 0.86, 250, (110, 130)),
}


def grey(folder: Path, name: str, finer: int = 1) -> Array:
    """A texture in 0..1 at the side of the samples, in so many smaller tiles each way."""
    tile = -(-SIDE // finer)
    image = Image.open(folder / f"{name}.png").convert("L").resize((tile, tile), Image.LANCZOS)
    values = np.asarray(image, dtype=np.float64) / 255
    for axis in (0, 1):  # every second tile mirrored: no seams
        pair = [values, np.flip(values, axis)]
        values = np.concatenate([pair[n % 2] for n in range(finer)], axis)
    return values[:SIDE, :SIDE]


def silhouette(folder: Path, scene: Scene) -> Image.Image:
    """The animal's mask, white on black, soft by a pixel."""
    horse = Image.open(folder / "horse.png").convert("L").point(lambda v: 255 - v)
    horse = horse.crop(horse.point(lambda v: 255 if v > 127 else 0).getbbox())
    width = round(horse.width * scene.height / horse.height)
    horse = horse.resize((width, scene.height), Image.LANCZOS)
    if scene.mirrored:
        horse = horse.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    mask = Image.new("L", (SIDE, SIDE))
    mask.paste(horse, scene.place)
    return mask


def composed(folder: Path, scene: Scene) -> tuple[Image.Image, Image.Image]:
    """The picture and its mask."""
    ground = grey(folder, scene.texture)
    mask = silhouette(folder, scene)
    alpha = np.asarray(mask.filter(ImageFilter.GaussianBlur(0.8)), dtype=np.float64) / 255
    # light from above: the belly lies in the animal's own shade, the ground below in its shadow
    inner = np.asarray(mask.filter(ImageFilter.GaussianBlur(14)), dtype=np.float64) / 255
    slope = np.gradient(inner, axis=0)
    shade = np.clip(1 + 9 * slope, 0.6, 1.3)
    coat = grey(folder, scene.coat, FINER)
    coat = scene.gain * shade * (coat - coat.mean() + ground.mean())
    shadow = 1 - 0.5 * np.clip(np.roll(inner, (10, 6), (0, 1)) - alpha, 0, 1)
    value = np.clip(alpha * coat + (1 - alpha) * ground * shadow, 0, 1)[..., None]
    colours = np.array(scene.dark) + value * (np.array(scene.light) - np.array(scene.dark))
    picture = Image.fromarray(np.rint(np.clip(colours, 0, 255)).astype(np.uint8))
    return picture, mask.point(lambda v: 255 if v > 127 else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    import skimage.data

    folder = Path(skimage.data.__file__).parent
    for part in ("Imgs", "GT"):
        (args.out / part).mkdir(parents=True, exist_ok=True)
    for name, scene in SCENES.items():
        picture, mask = composed(folder, scene)
        picture.save(args.out / "Imgs" / f"{name}.jpg", quality=QUALITY)
        mask.save(args.out / "GT" / f"{name}.png", optimize=True)
    cat = Image.open(folder / "chelsea.png").convert("RGB")
    cat.save(args.out / "cat.jpg", quality=QUALITY)


if __name__ == "__main__":
    main()
