"""Sizes of the runtime for browsers and of the network of its page, for docs/runtime.md.

python benchmarks/wasm_sizes.py --out results/runtime/wasm.json

Of what `make wasm` and `codtdq export vit-cod-w4a4 --to program --out build/wasm/vit.codtdq` wrote.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
from pathlib import Path

os.environ["CODTDQ_NATIVE"] = "generic"  # panels as wide as those of WebAssembly

from codtdq.io import write_json
from codtdq.runtime import Runtime


def main() -> None:
    """Write the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/wasm"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    library = (args.folder / "codtdq.wasm").read_bytes()
    version = subprocess.run(["emcc", "-dumpversion"], capture_output=True, text=True, check=True)
    with Runtime(args.folder / "vit.codtdq") as network:
        row = {
            "library_bytes": len(library),
            "library_gzip_bytes": len(gzip.compress(library, 9)),
            "emscripten": version.stdout.strip(),
            "network": network.info["model"],
            "method": network.info["method"],
            "network_bytes": (args.folder / "vit.codtdq").stat().st_size,
            "weight_bytes": network.weight_bytes,
            "arena_bytes": network.shapes[0].arena_bytes,
        }
    write_json(args.out, row, indent=1)


if __name__ == "__main__":
    main()
