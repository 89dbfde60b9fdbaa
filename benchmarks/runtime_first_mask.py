"""From nothing to the first mask: our runtime, torch and ONNX Runtime, each in a fresh process.

    python benchmarks/runtime_first_mask.py --model cfrn --threads 1 --out results/runtime/cfrn.json

One table, and the same as JSON for benchmarks/ship_tables.py. `import s`: what the process imports.
`first mask s`: from the start of the process, with the interpreter, imports, reading the file, and
one image from pixels to mask. `processor s`: processor time until then, which other work on the
machine hardly changes. `peak MB`: the most memory it has had until then. Each is the least of some
runs. `installed MB`: packages that the process imported, with all of their files; of codtdq the
modules that it imported, and the library.
Speed after the first mask is what `codtdq bench speed` measures. Models without shipped weights
have random ones. With --files the networks are written once and kept: a second call measures at
once; --prepare only writes them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from codtdq.columns import columns

COMMON = """
import sys, time
began = time.time()
import json, os, resource
file, image_file, threads, told = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
told = json.loads(told)
import numpy as np
{imports}
imported = time.time()
image = np.load(image_file)
{predict}
first, used = time.time(), resource.getrusage(resource.RUSAGE_SELF)
peak = next(int(one.split()[1]) for one in open("/proc/self/status") if one.startswith("VmHWM"))
assert mask.shape == image.shape[:2] and mask.dtype == np.uint8
folders, files = set(), set()
for module in list(sys.modules.values()):
    path = getattr(module, "__file__", None) or ""
    if module.__name__.split(".")[0] == "codtdq":
        files.add(path)
    elif "site-packages" + os.sep in path:
        root, _, rest = path.partition("site-packages" + os.sep)
        top = rest.split(os.sep)[0]
        folders |= {os.path.join(root, "site-packages", one) for one in (top, top + ".libs")}
if files:
    from codtdq import native
    files.add(str(native.path()))
files |= {
    os.path.join(base, one)
    for folder in folders for base, _, names in os.walk(folder) for one in names
}
size = sum(os.path.getsize(one) for one in files if os.path.isfile(one))
processor = used.ru_utime + used.ru_stime
told = {"import": imported - began, "first": first, "installed": size, "processor": processor}
print(json.dumps({**told, "peak": peak * 1024}))
"""
RUNTIME = (
    "from codtdq.runtime import Runtime",
    "mask = Runtime(file, threads=threads).predict(image)",
)
TORCH = (
    "import torch, codtdq",
    """
torch.set_num_threads(threads)
network = codtdq.create_model(told["model"], checkpoint=file)
mask = codtdq.predict(network, image)
""",
)
ONNX = (
    "import onnxruntime; from PIL import Image",
    """
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = threads, 3
network = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
(given,) = network.get_inputs()
x = np.asarray(Image.fromarray(image).resize(given.shape[:1:-1], 2), np.float32) / 255
x = (x - np.float32(told["mean"])) / np.float32(told["std"])
logits = network.run(None, {given.name: x.transpose(2, 0, 1)[None]})[0][0, 0]
shares = Image.fromarray(1 / (1 + np.exp(-logits))).resize(image.shape[1::-1], 2)
mask = np.rint(np.asarray(shares) * 255).astype(np.uint8)
""",
)
# title: (what it runs, its file)
CANDIDATES = {
    "torch FP32": (TORCH, "fp32.safetensors"),
    "ONNX Runtime FP32": (ONNX, "fp32.onnx"),
    "ONNX Runtime int8": (ONNX, "int8.onnx"),
    "codtdq.runtime": (RUNTIME, "net.codtdq"),
}


def measure(
    title: str, folder: Path, threads: int, told: dict[str, object], runs: int
) -> dict[str, float]:
    """The least of each figure over some processes; the first one brings files into memory."""
    (imports, predict), file = CANDIDATES[title]
    code = COMMON.replace("{imports}", imports).replace("{predict}", predict)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    words = [sys.executable, "-c", code, str(folder / file), str(folder / "image.npy")]
    found = []
    for _ in range(runs + 1):
        start = time.time()
        done = subprocess.run(
            [*words, str(threads), json.dumps(told)],
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode:
            raise SystemExit(f"{title}: {done.stderr[-2000:]}")
        one = json.loads(done.stdout.splitlines()[-1])
        found.append({**one, "first": one["first"] - start})
    return {key: min(one[key] for one in found[1:]) for key in found[0]}


def write_files(name: str, method: str, folder: Path) -> None:
    """The file of every candidate, and what they are told; files that are there are kept."""
    names = [file for _, file in CANDIDATES.values()]
    if all((folder / file).exists() for file in (*names, "told.json", "image.npy")):
        return
    import torch

    import codtdq
    from codtdq.evaluation.predict import info_of
    from codtdq.io import write_tensors
    from codtdq.lab.bench.speed.competitors.onnx_files import export_fp32, quantize_int8

    info = codtdq.models.model_info(name)
    torch.manual_seed(0)
    model = codtdq.create_model(name, pretrained=info.weights is not None).eval()
    read = info_of(model)

    class Mask(torch.nn.Module):
        """The network with its mask alone."""

        def __init__(self) -> None:
            super().__init__()
            self.network = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return read.mask_logits(self.network(x))

    def quantized() -> None:
        made = codtdq.quantize(model, codtdq.config(method, model=model), backend="cpu")
        codtdq.export(made, folder / "net.codtdq")

    steps = {
        "fp32.safetensors": lambda: write_tensors(folder / "fp32.safetensors", model.state_dict()),
        "net.codtdq": quantized,
        "fp32.onnx": lambda: export_fp32(
            Mask().eval(), torch.zeros(1, 3, read.input_size, read.input_size), folder / "fp32.onnx"
        ),
        "int8.onnx": lambda: quantize_int8(folder / "fp32.onnx", folder / "int8.onnx"),
    }
    for file, write in steps.items():
        if (folder / file).exists():
            continue
        began = time.time()
        write()
        print(f"wrote {file} in {time.time() - began:.0f} s", file=sys.stderr, flush=True)
    told = {"model": name, "mean": list(read.mean), "std": list(read.std)}
    (folder / "told.json").write_text(json.dumps(told))
    image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    np.save(folder / "image.npy", image)


def file_bytes(path: Path) -> int:
    """A network's file, with the data that an ONNX file may have beside it."""
    data = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)


def measured(folder: Path, threads: int, runs: int) -> list[dict[str, float | str]]:
    """A row for each candidate."""
    told = json.loads((folder / "told.json").read_text())
    rows: list[dict[str, float | str]] = []
    for title, (_, file) in CANDIDATES.items():
        one = measure(title, folder, threads, told, runs)
        rows.append(
            {
                "candidate": title,
                "installed_bytes": one["installed"],
                "file_bytes": file_bytes(folder / file),
                "import_seconds": one["import"],
                "first_mask_seconds": one["first"],
                "processor_seconds": one["processor"],
                "peak_bytes": one["peak"],
            }
        )
        print(f"measured {title}", file=sys.stderr, flush=True)
    return rows


def show(rows: list[dict[str, float | str]]) -> None:
    """Print the table."""
    header = ["candidate", "installed MB", "file MB", "import s", "first mask s", "processor s"]
    header.append("peak MB")
    lines = [
        [
            str(row["candidate"]),
            f"{float(row['installed_bytes']) / 1e6:.1f}",
            f"{float(row['file_bytes']) / 1e6:.1f}",
            f"{float(row['import_seconds']):.2f}",
            f"{float(row['first_mask_seconds']):.2f}",
            f"{float(row['processor_seconds']):.2f}",
            f"{float(row['peak_bytes']) / 1e6:.0f}",
        ]
        for row in rows
    ]
    print(columns(header, lines, None))


def main() -> None:
    """Write files, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cfrn")
    parser.add_argument("--method", default="cod-tdq")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--files", type=Path, help="folder to keep the networks in")
    parser.add_argument("--prepare", action="store_true", help="write the networks, and end")
    parser.add_argument("--out", type=Path, help="write the rows as JSON, with the machine")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = args.files or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        write_files(args.model, args.method, folder)
        if args.prepare:
            return
        from codtdq.lab.bench.speed.machine import machine

        facts = machine()  # with the load that there is before
        rows = measured(folder, args.threads, args.runs)
    show(rows)
    if args.out:
        import onnxruntime

        from codtdq.io import write_json

        facts["onnxruntime"] = onnxruntime.__version__
        settings = {key: getattr(args, key) for key in ("model", "method", "runs", "threads")}
        write_json(args.out, {"machine": facts, **settings, "rows": rows})


if __name__ == "__main__":
    main()
