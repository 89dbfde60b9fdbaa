"""Two folders of links from a folder of images with masks: those held out of training, the rest.

The same images that `codtdq train --source pairs:FOLDER --holdout N` keeps out, so that a benchmark
can be scored on them and calibrated on others:

    python benchmarks/split_pairs.py CAMO-train split --holdout 100
    codtdq bench accuracy --dataset split/held-out --calibration split/rest --out runs/photographs
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from codtdq.data.folder import ImageMaskFolder
from codtdq.lab.training.sources import split_holdout


def link(folder: ImageMaskFolder, chosen: list[int], out: Path) -> None:
    """Images and masks of a part as links."""
    for part in ("Imgs", "GT"):
        (out / part).mkdir(parents=True)
    names = {Path(folder.names()[index]).stem for index in chosen}
    for part, place in (("Imgs", folder.images_dir), ("GT", folder.masks_dir)):
        for file in place.iterdir():
            if file.stem in names:
                os.symlink(file.resolve(), out / part / file.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", type=Path, help="folder with images and masks")
    parser.add_argument("out", type=Path, help="where held-out/ and rest/ go")
    parser.add_argument("--holdout", type=int, default=100)
    args = parser.parse_args()
    folder = ImageMaskFolder(args.pairs)
    rest, held_out = split_holdout(folder.names(), args.holdout)
    link(folder, held_out, args.out / "held-out")
    link(folder, rest, args.out / "rest")
    print(f"{len(held_out)} in {args.out / 'held-out'}, {len(rest)} in {args.out / 'rest'}")


if __name__ == "__main__":
    main()
