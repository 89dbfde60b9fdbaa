"""Draw the picture of the README: one photograph, and the masks of a network at several widths.

    python benchmarks/readme_picture.py PHOTO OUT [--model NAME]

The photograph must be one that may be passed on. Each panel tints what the network marks.
"""

import argparse

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from codtdq.evaluation.pictures import overlay_of
from codtdq.evaluation.predict import predict_batch
from codtdq.imagefile import read_upright
from codtdq.lab.serve.variants import Variants

HEIGHT, GAP, TITLE = 240, 8, 26


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photo")
    parser.add_argument("out")
    parser.add_argument("--model", default="vit-cod")
    args = parser.parse_args()
    photo = read_upright(args.photo)
    variants = Variants(args.model)
    variants.prepare()
    panels = [("photograph", photo)]
    for variant in variants.all():
        if variant.model is None:
            raise SystemExit(f"{variant.method}: {variant.reason}")
        mask = np.asarray(predict_batch(variant.model, [photo])[0])
        title = f"{variant.title}, {variant.bytes / 2**20:.1f} MiB"
        panels.append((title, overlay_of(photo, mask)))
    width = round(HEIGHT * photo.shape[1] / photo.shape[0])
    sheet = Image.new("RGB", (len(panels) * (width + GAP) - GAP, HEIGHT + TITLE), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for at, (title, pixels) in enumerate(panels):
        left = at * (width + GAP)
        picture = Image.fromarray(pixels).resize((width, HEIGHT), Image.Resampling.LANCZOS)
        sheet.paste(picture, (left, TITLE))
        pen.text((left + 2, 4), title, fill="black", font=font)
    sheet.save(args.out, quality=88)


if __name__ == "__main__":
    main()
