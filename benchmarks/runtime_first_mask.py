"""From a file to the first mask in a fresh process: the runtime, torch and ONNX Runtime.

    python benchmarks/runtime_first_mask.py --model cfrn --method cod-tdq --runs 5 --threads 2

Every candidate is a process that imports what it needs, reads its file, and segments one image; the
least of several runs is shown, in seconds: imports, opening, the first mask, all of it; then the
median of ten more masks, and the sizes of the file and of what has to be installed (the packages
that the process imported). FP32 checkpoints hold random weights where none are shipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import codtdq
from codtdq.columns import columns
from codtdq.io import write_tensors

COMMON = """
import json, os, statistics, sys, time
started = time.perf_counter()
file, image_file, threads, name = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
import numpy as np
{imports}
imported = time.perf_counter()
image = np.load(image_file)
{open}
opened = time.perf_counter()
{predict}
first = time.perf_counter()
more = []
for _ in range(10):
    began = time.perf_counter()
    {predict}
    more.append(time.perf_counter() - began)
folders = set()
for module in list(sys.modules.values()):
    path = getattr(module, "__file__", None) or ""
    if "site-packages" + os.sep in path:
        root, _, rest = path.partition("site-packages" + os.sep)
        top = rest.split(os.sep)[0]
        folders |= {{os.path.join(root, "site-packages", one) for one in (top, top + ".libs")}}
size = sum(
    os.path.getsize(os.path.join(base, one))
    for folder in folders for base, _, names in os.walk(folder) for one in names
    if os.path.isfile(os.path.join(base, one))
)
print(json.dumps({{"import": imported - started, "open": opened - imported,
    "first": first - opened, "all": first - started, "next": statistics.median(more),
    "installed": size}}))
"""
CANDIDATES = {
    "runtime": (
        "from codtdq.runtime import Runtime",
        "network = Runtime(file, threads=threads)",
        "mask = network.predict(image)",
    ),
    "torch FP32": (
        "import torch, codtdq; torch.set_num_threads(threads)",
        "network = codtdq.create_model(name, checkpoint=file)",
        "mask = codtdq.predict(network, image)",
    ),
    "onnxruntime": (
        "import onnxruntime; from PIL import Image",
        "options = onnxruntime.SessionOptions(); options.intra_op_num_threads = threads; "
        "options.log_severity_level = 3; "
        "network = onnxruntime.InferenceSession(file, options, "
        "providers=['CPUExecutionProvider']); side = network.get_inputs()[0].shape[2]; "
        "feed = network.get_inputs()[0].name",
        "x = np.asarray(Image.fromarray(image).resize((side, side), 2), np.float32) / 255; "
        "x = (x - np.array([.485, .456, .406], np.float32)) / "
        "np.array([.229, .224, .225], np.float32); "
        "mask = network.run(None, {{feed: x.transpose(2, 0, 1)[None]}})[0]",
    ),
}


def measure(kind: str, file: Path, image: Path, threads: int, name: str, runs: int):
    """The least of each figure over some processes."""
    imports, opening, predict = CANDIDATES[kind]
    code = COMMON.format(imports=imports, open=opening, predict=predict)
    code = code.replace("{{", "{").replace("}}", "}")
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    found = []
    for _ in range(runs + 1):  # the first one brings files into memory
        words = [sys.executable, "-c", code, str(file), str(image), str(threads), name]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{kind}: {done.stderr[-2000:]}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return {key: min(one[key] for one in found[1:]) for key in found[0]}


def write_files(name: str, method: str, folder: Path) -> dict[str, tuple[str, Path]]:
    """Files of every candidate, by its title."""
    shipped = codtdq.models.model_info(name).weights is not None
    torch.manual_seed(0)
    model = codtdq.create_model(name, pretrained=shipped)
    write_tensors(folder / "fp32.safetensors", model.state_dict())
    quantized = codtdq.quantize(model, codtdq.config(method, model=model), backend="cpu")
    codtdq.export(quantized, folder / "net.codtdq")
    found = {
        "codtdq.runtime": ("runtime", folder / "net.codtdq"),
        "torch FP32": ("torch FP32", folder / "fp32.safetensors"),
    }
    try:
        from codtdq.lab.bench.speed.competitors.onnx_files import export_fp32, quantize_int8

        side = model.info.input_size
        export_fp32(model, torch.zeros(1, 3, side, side), folder / "fp32.onnx")
        found["ONNX Runtime FP32"] = ("onnxruntime", folder / "fp32.onnx")
        quantize_int8(folder / "fp32.onnx", folder / "int8.onnx")
        found["ONNX Runtime int8"] = ("onnxruntime", folder / "int8.onnx")
    except ModuleNotFoundError as error:
        print(f"left out ONNX Runtime: {error}", file=sys.stderr)
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cfrn")
    parser.add_argument("--method", default="cod-tdq")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
        np.save(folder / "image.npy", image)
        rows = []
        for title, (kind, file) in write_files(args.model, args.method, folder).items():
            one = measure(kind, file, folder / "image.npy", args.threads, args.model, args.runs)
            data = file.with_name(f"{file.name}.data")
            size = file.stat().st_size + (data.stat().st_size if data.exists() else 0)
            times = [f"{one[key]:.2f}" for key in ("import", "open", "first", "all", "next")]
            rows.append([title, *times, f"{size / 1e6:.1f}", f"{one['installed'] / 1e6:.0f}"])
    header = ["candidate", "import s", "open s", "first s", "all s", "next s", "file MB"]
    print(columns([*header, "installed MB"], rows, None))


if __name__ == "__main__":
    main()
