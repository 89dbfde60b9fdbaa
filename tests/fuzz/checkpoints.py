"""Structured mutations of checkpoints: nothing but a one-line refusal, or a model that runs.

    python tests/fuzz/checkpoints.py --count 1000000 --seed 0      # more options: campaign.py

Headers and tensors are changed in memory and given to the checks that every load goes through. Of
what they accept, a share is built and run on the native engine; a share of all inputs goes through
files, with every hash made to fit. A traceback, a refusal of two lines, or an input that takes five
seconds of processor time or much memory is a failure, printed with the number that repeats it.
"""

from __future__ import annotations

import copy
import json
import math
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import campaign
import torch
from safetensors.torch import save
from torch import Tensor, nn

import codtdq
from codtdq.checkpoint import files, header, store, validation
from codtdq.engine import use_backend
from codtdq.errors import CodtdqError
from codtdq.methods import list_methods
from codtdq.methods.registry import config_of
from codtdq.schemes.token_groups import TokenGroups
from codtdq.schemes.transforms import Transform, Transformed

METHODS = (
    "cod-tdq",
    "cod-tdq-plus",
    "smoothquant-static",
    "nvfp4",
    "arcquant",
    "quartz",
    "ahcptq",
    "igq-vit",
    "token-bitwidth",
    "noisyquant",
    "pq-sam-init",
    "ptq4vit",
    "orq-vit",
    "per-token",
)
RUN_SHARE, FILE_SHARE = 0.02, 0.002


class Tiny(nn.Module):
    """A dense, a depthwise and a one-channel convolution, two linear maps: 6x6 images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.LayerNorm(8)
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Conv2d(8, 1, 1)
        self.last = nn.Conv2d(1, 2, 3, padding=1)
        self.register_buffer("index", torch.arange(80))
        self.register_buffer("mask", torch.eye(9) * -100.0 + 0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.stem(x))
        t = self.norm(x.flatten(2).transpose(1, 2))
        t = t + self.fc2(nn.functional.gelu(self.fc1(t)))
        return self.last(self.head(t.transpose(1, 2).reshape(x.shape)))


def tiny() -> Tiny:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Tiny().eval()


IMAGE = torch.linspace(-1, 1, 3 * 36).reshape(1, 3, 6, 6)


@dataclass
class Seed:
    """A valid checkpoint, in memory."""

    method: str
    text: str  # of the header, without seal
    entries: dict[str, Tensor]
    skeleton: nn.Module = field(default_factory=tiny)

    @classmethod
    def of(cls, method: str, folder: Path) -> Seed:
        config = codtdq.config(method, float_storage="block8")
        model = codtdq.quantize(tiny(), config, calibration=[IMAGE] * 2, backend="reference")
        if method == "cod-tdq-plus":  # with everything that a transform can hold
            order = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])
            vectors = Transform(torch.zeros(8), torch.ones(8), order, hadamard=True)
            inner = TokenGroups(4, 8, 2, unit=0.05)
            model.get_submodule("fc1").exchange(inputs=Transformed(inner, transform=vectors))
        path = codtdq.save(model, folder / method)
        meta, entries = files.read(path)
        meta = {k: v for k, v in meta.items() if k != header.SEAL}
        return cls(method, json.dumps(meta), entries)


ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 7, 255, 2**31 - 1, 2**31, 2**40, 2**63, 10**40, -(2**62), 0.5,
    -0.0, 1e-320, 1e300, math.nan, math.inf, -math.inf, "", "x", "float", "\x1b[31m", "a" * 300, [],
    [0], [1, 1], [8, 8], [8, 10**9], [2**31, 2**31], {}, {"kind": "float"}, {"inner": {}}, [[[]]],
)  # fmt: skip


def odd(rng: random.Random) -> Any:
    """One of them, as an object of its own: a later change must not reach the list."""
    return copy.deepcopy(rng.choice(ODD))


def places(value: Any, found: list[tuple[Any, Any]]) -> None:
    """Every (container, key) of a JSON document."""
    items = (
        value.items() if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list) else ()
    )  # fmt: skip
    for key, item in items:
        found.append((value, key))
        if isinstance(item, dict | list):
            places(item, found)


def mutate_header(meta: dict[str, Any], rng: random.Random) -> None:
    """Change one thing of a header."""
    found: list[tuple[Any, Any]] = []
    # most of what can do harm describes operators
    part = rng.choice(["operators", "operators", "plan", "floats", "aliases", "config", "run", ""])
    root = meta.get(part) if part else meta
    places(root if isinstance(root, dict | list) and root else meta, found)
    container, key = rng.choice(found)
    value, act = container[key], rng.random()
    if act < 0.5:
        container[key] = odd(rng)
    elif act < 0.6 and isinstance(container, dict):
        del container[key]
    elif act < 0.75 and type(value) in (int, float):
        container[key] = rng.choice([value + 1, value - 1, -value, value * 2, value * 1000])
    elif act < 0.85 and isinstance(container, dict):
        container[rng.choice(["x", "bits", "shape", "group", "kind", "inner"])] = odd(rng)
    else:  # something of another place: right in type, wrong here
        other, place = rng.choice(found)
        container[key] = json.loads(json.dumps(other[place]))


EXTREMES = (math.nan, math.inf, -math.inf, -1, 0, 1, 127, 128, 255, 256, 32767, -32768, 1e38)
DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.bool,
)  # fmt: skip


def put_extreme(tensor: Tensor, rng: random.Random) -> Tensor:
    changed = tensor.clone()
    value = rng.choice(EXTREMES)
    if not changed.is_floating_point():
        info = None if changed.dtype is torch.bool else torch.iinfo(changed.dtype)
        number = 0 if not math.isfinite(value) or abs(value) > 2**31 else int(value)
        value = bool(number) if info is None else max(info.min, min(info.max, number))
    flat = changed.reshape(-1)
    if flat.numel():
        flat[rng.randrange(flat.numel())] = value
    return changed


def mutate_tensors(entries: dict[str, Tensor], rng: random.Random) -> None:
    """Change one thing of the tensors."""
    name = rng.choice(list(entries))
    tensor, act = entries[name], rng.randrange(11)
    if act <= 3:
        entries[name] = put_extreme(tensor, rng)
    elif act == 4 and tensor.ndim:
        axis = rng.randrange(tensor.ndim)
        entries[name] = tensor.narrow(axis, 0, rng.randrange(tensor.shape[axis] + 1)).contiguous()
    elif act == 5 and tensor.ndim:
        axis = rng.randrange(tensor.ndim)
        entries[name] = torch.cat([tensor] * rng.choice([2, 3]), axis)
    elif act == 6:
        entries[name] = tensor.to(rng.choice(DTYPES))
    elif act == 7:
        entries[name] = tensor.reshape(rng.choice([(-1,), (1, -1), (-1, 1)]))
    elif act == 8:
        del entries[name]
    elif act == 9:
        suffix = rng.choice(["x", "#narrow", "#palette.codes", "#palette.values"])
        entries[name + suffix] = tensor
    else:
        other = rng.choice(list(entries))
        entries[name], entries[other] = entries[other], entries[name]


def check(seed: Seed, meta: dict[str, Any], entries: dict[str, Tensor]) -> None:
    """What a load checks before it builds, all of it but the hashes."""
    path = Path("codtdq.json")
    header.check_version(meta, path)
    header.check({**meta, header.SEAL: "0" * 64}, path)
    validation.validate(meta, entries, config_of, seed.skeleton)


def build_and_run(seed: Seed, meta: dict[str, Any], entries: dict[str, Tensor]) -> None:
    """Build what was accepted and run it, on the native engine where it can."""
    model = store.build(seed.skeleton, meta, entries, config_of)
    use_backend(model, "auto", example=IMAGE)
    with torch.no_grad():
        model(IMAGE)


def through_files(
    seed: Seed, meta: dict[str, Any], entries: dict[str, Tensor], rng: random.Random, folder: Path
) -> None:
    """Write the input with fitting hashes, sometimes with changed bytes, and load it."""
    data = bytearray(save({k: v.clone() for k, v in entries.items()}, {"format": "codtdq"}))
    if rng.random() < 0.5 and data:
        for _ in range(rng.choice([1, 4, 16])):
            reach = min(len(data), rng.choice([8, 256, len(data)]))
            data[rng.randrange(reach)] = rng.randrange(256)
    for old in folder.iterdir():
        old.unlink()
    digest = files.hashlib.sha256(data).hexdigest()
    name = files.weights_name(digest)
    (folder / name).write_bytes(bytes(data))
    text = header.to_text(header.seal({**meta, "weights": name, "sha256": digest}))
    (folder / files.META).write_text(text)
    model = codtdq.load(folder, model=seed.skeleton, backend="auto")
    with torch.no_grad():
        model(IMAGE)


class Fuzzer(campaign.Fuzzer):
    """Checkpoints of some methods, changed."""

    refusals = CodtdqError

    def __init__(self, folder: Path, methods: tuple[str, ...] = METHODS) -> None:
        list_methods()
        self.folder = folder / "input"
        self.folder.mkdir()
        seeds = [Seed.of(method, folder) for method in methods]
        for seed in seeds:  # what is changed is sound to begin with
            build_and_run(seed, json.loads(seed.text), dict(seed.entries))
        super().__init__(seeds)

    def prepare(self, seed: Seed, rng: random.Random) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Header and tensors, one to three things of which are changed."""
        meta, entries = json.loads(seed.text), dict(seed.entries)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            if rng.random() < 0.5 or not entries:
                mutate_header(meta, rng)
            else:
                mutate_tensors(entries, rng)
        return meta, entries

    def try_out(self, seed: Seed, prepared: Any, rng: random.Random) -> str:
        """Check it; build and run a share."""
        meta, entries = prepared
        way = rng.random()
        if way < FILE_SHARE:
            self.counts["through files"] += 1
            through_files(seed, meta, entries, rng, self.folder)
            return "accepted"
        check(seed, meta, entries)
        if way < FILE_SHARE + RUN_SHARE:
            self.counts["built and run"] += 1
            build_and_run(seed, meta, entries)
        return "accepted"


if __name__ == "__main__":
    sys.exit(campaign.main(str(__doc__), "checkpoints", Fuzzer))
