"""Build the libFuzzer target of program files under sanitizers, and run it.

    python tests/fuzz/libfuzzer.py --runs 1000000 --folder build/fuzz

The corpus begins with the valid files of `programs.py`; what raises coverage is kept in the folder,
what fails, too.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "engine" / "cpu"), str(ROOT / "tests")]

from programs import Fuzzer
from test_selftest import ENGINE, engine_sources

COMPILERS = ("clang++", "clang++-14", "clang++-16", "clang++-18")
SANITIZED = ("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")


def find_compiler() -> str | None:
    """A clang that is installed."""
    return next((name for name in COMPILERS if shutil.which(name)), None)


def build(folder: Path, compiler: str) -> Path:
    """The target with the plain kernels."""
    include = ROOT / "src" / "codtdq" / "runtime" / "include"
    flags = ["-std=gnu++17", *SANITIZED, f"-I{ENGINE}", f"-I{include}"]
    objects = []
    for source in [*engine_sources("none"), HERE / "program_target.cpp"]:
        objects.append(str(folder / f"{source.stem}.o"))
        subprocess.run([compiler, *flags, "-c", str(source), "-o", objects[-1]], check=True)
    target = folder / "program_target"
    subprocess.run([compiler, *SANITIZED, *objects, "-pthread", "-o", str(target)], check=True)
    return target


def run(target: Path, folder: Path, runs: int) -> int:
    """Run the target; returns its exit code."""
    corpus, kept = folder / "corpus", folder / "kept"
    for one in (corpus, kept):
        one.mkdir(exist_ok=True)
    Fuzzer(corpus)  # writes the valid files
    options = ["-timeout=20", "-rss_limit_mb=4096", "-max_len=65536", "-seed=1"]
    words = [str(target), str(kept), str(corpus), f"-runs={runs}", "-print_final_stats=1", *options]
    return subprocess.run(words, cwd=folder, check=False).returncode


def main() -> int:
    """Build and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz")
    args = parser.parse_args()
    compiler = find_compiler()
    if compiler is None:
        print("libfuzzer: no clang is installed; install clang and its runtime", file=sys.stderr)
        return 2
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return run(build(folder, compiler), folder, args.runs)


if __name__ == "__main__":
    sys.exit(main())
