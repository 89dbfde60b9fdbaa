"""Where vit-cod's heavy tokens are, and what one range for all makes of the others.

    python benchmarks/vit_cod_tokens.py split/held-out --limit 20 \\
        --out results/vit-cod/tokens.json
    python benchmarks/vit_cod_tokens.py samples --picture docs/images/vit-cod-tokens.png

Of every Linear layer of the encoder, in float: the peak max_c |x| of each token, the token that
sets the range of the whole input, where the heaviest 1 % of tokens lie (class token, object,
its boundary, background), D(X), and the zero-bin mass of boundary tokens at four bits under one
range for the input and under groups of a token (the naive setting, DSTG).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from codtdq.data import open_dataset
from codtdq.data.sample import Sample
from codtdq.data.transforms import to_input
from codtdq.io import write_json
from codtdq.lab.diagnosis.groups import disparity
from codtdq.models import create_model
from codtdq.numerics import ActivationSpec, quantize

MODEL, PATCH = "vit-cod", 14
PLACES = ("class", "object", "boundary", "background")
HEAVY = 0.01  # share of the tokens
GROUP = 32
PICTURED = ("blocks.2.mlp.fc2", "blocks.6.mlp.fc1", "blocks.11.attn.qkv", "blocks.11.mlp.fc2")
CELL = 224  # pixels of a picture


def places(mask: np.ndarray[Any, Any], side: int) -> Tensor:
    """Index into PLACES of the class token and of every patch, [1 + side^2]."""
    small = Image.fromarray(mask).resize((side * PATCH, side * PATCH), Image.Resampling.BOX)
    share = np.asarray(small, dtype=np.float32).reshape(side, PATCH, side, PATCH).mean((1, 3)) / 255
    found = np.where(share > 0.9, 1, np.where(share < 0.1, 3, 2)).flatten()
    return torch.from_numpy(np.concatenate([[0], found]))


def inputs_of(model: nn.Module, sample: Sample) -> dict[str, Tensor]:
    """Tokens [T, C] that every Linear layer of the encoder reads."""
    found: dict[str, Tensor] = {}
    encoder: Any = model.encoder
    handles = [
        module.register_forward_pre_hook(
            lambda _module, args, name=name: found.__setitem__(name, args[0][0].detach())
        )
        for name, module in encoder.named_modules()
        if isinstance(module, nn.Linear)
    ]
    info: Any = model.info
    image = to_input(sample.image, info.input_size, info.mean, info.std)
    with torch.inference_mode():
        encoder(image.unsqueeze(0), (len(encoder.blocks),))
    for handle in handles:
        handle.remove()
    return found


def zeroed(x: Tensor, at: Tensor, mode: str) -> float:
    """Share of non-zero values of the tokens `at` that become zero at four bits."""
    spec = ActivationSpec(bits=4, mode=mode, group_size=GROUP, tau=None, zero_ratio=None)
    x_hat = quantize(x.unsqueeze(0), spec).x_hat[0][at]
    alive = x[at] != 0
    return float(((x_hat == 0) & alive).sum() / alive.sum().clamp(min=1))


def measured(x: Tensor, where: Tensor) -> dict[str, float]:
    """Numbers of one input [T, C]."""
    peaks = x.abs().amax(1)
    heavy = where[peaks.topk(max(1, round(HEAVY * len(peaks)))).indices]
    boundary = where == PLACES.index("boundary")
    row = {
        "disparity": disparity(x, float(peaks.max())),
        "peak_ratio": float(peaks.max() / peaks.median()),
        "zeroed_tensor": zeroed(x, boundary, "per_tensor"),
        "zeroed_groups": zeroed(x, boundary, "per_token_group"),
    }
    for number, place in enumerate(PLACES):
        row[f"tokens_{place}"] = float((where == number).float().mean())
        row[f"heavy_{place}"] = float((heavy == number).float().mean())
        row[f"largest_{place}"] = float(where[peaks.argmax()] == number)
    return row


def drawn(sample: Sample, inputs: dict[str, Tensor], side: int) -> Image.Image:
    """A row: the picture, then peaks of its tokens over their median, black 0 to white 4."""
    cells = [Image.fromarray(sample.image).resize((CELL, CELL))]
    for name in PICTURED:
        peaks = inputs[name].abs().amax(1)[1:].reshape(side, side)
        grey = (peaks / peaks.median() / 4).clamp(0, 1).mul(255).to(torch.uint8)
        cells.append(Image.fromarray(grey.numpy()).resize((CELL, CELL), Image.Resampling.NEAREST))
    row = Image.new("RGB", (len(cells) * (CELL + 6) - 6, CELL), "white")
    for number, cell in enumerate(cells):
        row.paste(cell.convert("RGB"), (number * (CELL + 6), 0))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="folder with Imgs and GT, or a name")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="JSON: means over images, by layer")
    parser.add_argument(
        "--picture", type=Path, help="PNG of the peaks; of images that may be shown"
    )
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    model = create_model(MODEL)
    side = model.info.input_size // PATCH  # type: ignore[union-attr, operator]
    sums: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rows = []
    dataset = open_dataset(args.dataset, limit=args.limit)
    for index in range(len(dataset)):
        sample = dataset[index]
        assert sample.mask is not None
        inputs, where = inputs_of(model, sample), places(sample.mask, side)
        for name, x in inputs.items():
            for key, value in measured(x, where).items():
                sums[name][key].append(value)
        rows.append(drawn(sample, inputs, side))
    layers = {
        name: {key: round(float(np.nanmean(found)), 4) for key, found in keys.items()}
        for name, keys in sums.items()
    }
    if args.out:
        write_json(args.out, {"images": len(dataset), "dataset": args.dataset, "layers": layers})
    if args.picture:
        sheet = Image.new("RGB", (rows[0].width, len(rows) * (CELL + 6) - 6), "white")
        for number, row in enumerate(rows):
            sheet.paste(row, (0, number * (CELL + 6)))
        sheet.save(args.picture, optimize=True)
    print(json.dumps(layers, indent=1))


if __name__ == "__main__":
    main()
