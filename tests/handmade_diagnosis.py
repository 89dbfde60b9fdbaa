"""A small diagnosis made by hand, for figures and pages: every field filled, nothing computed."""

import math

import numpy as np

from codtdq.lab.diagnosis.record import (
    Diagnosis,
    GalleryItem,
    GroupSample,
    Histogram,
    ImageRecord,
    LayerRecord,
    LayerSample,
    MethodRecord,
    Region,
    Summary,
    WeightRecord,
    WeightSample,
)

SIDE = 48
LAYERS = (
    ("backbone.patch_embed.proj", "first", "conv", (12, 12)),
    ("backbone.stages.0.attn.qkv", "attention", "linear", (12, 12)),
    ("backbone.stages.0.mlp.fc1", "mlp", "linear", (12, 12)),
    ("backbone.stages.1.mlp.fc2", "mlp", "linear", (6, 6)),
    ("decoder.fuse.conv", "conv", "conv", (24, 24)),
    ('head.<weird & "name">', "other", "depthwise", None),
)
# method: title, how coarse its steps are, S
METHODS = {
    "fp32": ("FP32", 0.0, 0.81),
    "w4a4": ("W4A4 (naive)", 1.0, 0.55),
    "cod-tdq-guarded": ("COD-TDQ (guarded)", 0.25, 0.77),
    "repq-vit": ("RepQ-ViT", 0.6, 0.63),  # a method without groups: no steps
}


def summary(value):
    return Summary(value, value * 0.9, value * 2, value * 3)


def region(share, step, tokens):
    return Region(tokens, share * 3, share, step, share * 2, 0.4, share, 20 - 15 * share)


def histogram(edges, centre, total=400):
    """A bell around `centre` on the given edges."""
    middle = (np.asarray(edges[:-1]) + np.asarray(edges[1:])) / 2
    weight = np.exp(-(((middle - centre) / (0.15 * edges[-1])) ** 2))
    counts = np.floor(weight / weight.sum() * total).astype(int)
    return Histogram(list(edges), counts.tolist())


def layer(index, method, coarse):
    name, role, kind, grid = LAYERS[index]
    share = min(0.9, coarse * (0.2 + 0.12 * index))
    step = math.nan if method in ("fp32", "repq-vit") else 0.5 * coarse
    eta = step / 0.8
    etas, shares = np.linspace(0, 4, 33).tolist(), np.linspace(0, 1, 21).tolist()
    ranges = np.geomspace(1e-3, 1e3, 25).tolist()
    placed = grid is not None
    return LayerRecord(
        name=name,
        role=role,
        kind=kind,
        order=index,
        calls=4,
        channels=32,
        grid=grid,
        mode="float" if method == "fp32" else "per_token_group",
        bits=32 if coarse == 0 else 4,
        group=32,
        radius=summary(step * 7),
        step=summary(step),
        sigma=summary(0.8),
        eta=summary(eta),
        rho0=summary(share),
        clip=summary(0.01 * coarse),
        c_g=step * 7 / 0.8,
        disparity=5.0 + index,
        disparity_defined=1.0,
        sqnr_db=math.inf if coarse == 0 else 22 - 14 * coarse - index,
        cosine=1 - 0.1 * share,
        active={"base": 0.5, "c1": 0.2, "c2": 0.3, "guarded": 0.0},
        infeasible={"c1": 0.0, "c2": 0.1},
        boundary=region(share, step, 40) if placed else None,
        elsewhere=region(share * 0.7, step, 90) if placed else None,
        token_eta=histogram(etas, 0 if math.isnan(eta) else eta),
        token_rho0=histogram(shares, share),
        group_eta=histogram(etas, 0 if math.isnan(eta) else eta),
        group_rho0=histogram(shares, share),
        token_range=histogram(ranges, 3.0),
    )


def picture(rng, shift):
    """A disc on a noisy ground."""
    y, x = np.mgrid[:SIDE, :SIDE]
    disc = (x - 20 - shift) ** 2 + (y - 24) ** 2 < 144
    ring = np.abs(np.hypot(x - 20 - shift, y - 24) - 12) < 3
    image = rng.integers(60, 160, (SIDE, SIDE, 3)).astype(np.uint8)
    image[disc] = image[disc] // 2 + 60
    return image, disc.astype(np.uint8) * 255, ring.astype(np.uint8) * 255


def gallery_item(index, rng):
    image, truth, band = picture(rng, 3 * index)
    masks = {m: (truth * (1 - 0.6 * c)).astype(np.uint8) for m, (_, c, _) in METHODS.items()}
    shown = [name for name, _, _, grid in LAYERS if grid][:3]
    zeroed = {
        method: {
            name: (np.clip(coarse * (0.3 + 0.2 * i), 0, 1) * (band // 2 + 100)).astype(np.uint8)
            for i, name in enumerate(shown)
        }
        for method, (_, coarse, _) in METHODS.items()
        if method != "fp32"
    }
    return GalleryItem(f"scene-{index}", image, truth, band, masks, zeroed)


def layer_sample(method, coarse, rng):
    token = np.repeat(np.arange(64), 32)
    boundary = np.where(np.arange(64) % 4 == 0, 1, 0).astype(np.int8)[token]
    scale = np.where(np.arange(64) % 9 == 5, 8.0, 0.4)[token]  # some background tokens are loud
    x = (rng.normal(0, 1, token.size) * np.where(boundary == 1, 0.3, scale)).astype(np.float32)
    if coarse:
        step = coarse * 1.6 if method == "w4a4" else coarse * np.abs(x).mean() * 2
        x_hat = (np.trunc(x / step + np.sign(x) * 0.5) * step).astype(np.float32)
    else:
        x_hat = x
    groups = group_sample(rng) if method == "cod-tdq-guarded" else None
    return LayerSample(method, LAYERS[2][0], x, x_hat, token, boundary, groups)


def group_sample(rng):
    """Groups that the projection holds under tau = 1 and zr = 0.2."""
    eta, rho0 = rng.uniform(0.2, 3, 256), rng.uniform(0, 1, 256)
    numbers = (values.astype(np.float32) for values in (eta, eta.clip(max=1), rho0, rho0 / 5))
    return GroupSample(1.0, 0.2, *numbers, boundary=(np.arange(256) % 4 == 0).astype(np.int8))


def weight_sample(method, coarse, rng):
    weight = rng.normal(0, 0.05, (24, 16)).astype(np.float32)
    if coarse:
        step = coarse * 0.02
        weight = (np.trunc(weight / step + np.sign(weight) * 0.5) * step).astype(np.float32)
    return WeightSample(method, LAYERS[1][0], weight)


def handmade(images=3):
    """The diagnosis: four methods, six layers, `images` scenes."""
    rng = np.random.default_rng(7)
    records = []
    for method, (title, coarse, score) in METHODS.items():
        rows = [] if method == "fp32" else [layer(i, method, coarse) for i in range(len(LAYERS))]
        weights = [
            WeightRecord(name, role, -6e-5, 0.05 * (1 + coarse), 0.12, 0.45 + coarse)
            for name, role, _, _ in LAYERS
        ]
        metrics = {
            "S": score,
            "wF": score - 0.1,
            "E_mean": score,
            "F_mean": score,
            "MAE": 1 - score,
        }
        bits = (
            {"weight": 4.1, "activation": 5.0} if coarse else {"weight": 32.0, "activation": 32.0}
        )
        records.append(MethodRecord(method, title, metrics, rows, weights, bits))
    return Diagnosis(
        model="cfrn-small",
        dataset="camosynth",
        settings={
            "r_in": 2,
            "r_out": 2,
            "gamma_boundary": 0.5,
            "gamma_nonboundary": 0.05,
            "limit": 3,
            "seed": 0,
        },
        methods=records,
        images=[
            ImageRecord(f"scene-{i}", {m: s - 0.01 * i for m, (_, _, s) in METHODS.items()})
            for i in range(images)
        ],
        provenance={"environment": {"torch": "2", "cpu": "a <fast> one"}, "sha256": "ab" * 32},
        command="codtdq diagnose --method w4a4,cod-tdq-guarded,repq-vit --out 'my run'",
        unmapped=[LAYERS[5][0]],
        gallery=[gallery_item(i, rng) for i in range(images)],
        samples=[layer_sample(m, c, rng) for m, (_, c, _) in METHODS.items()],
        weight_samples=[weight_sample(m, c, rng) for m, (_, c, _) in METHODS.items()],
    )
