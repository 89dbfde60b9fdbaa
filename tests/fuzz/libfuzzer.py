"""Build a target of libFuzzer under sanitizers, and run it.

    python tests/fuzz/libfuzzer.py programs --runs 1000000
    python tests/fuzz/libfuzzer.py kernels --runs 1000000 --record results/fuzz/runs.jsonl

programs: bytes as a program file, which is opened and run. kernels: bytes as the arguments of a
call of the C interface. The engine is compiled with every instruction set of this processor. The
corpus of programs begins with the valid files of `programs.py`; what raises coverage is kept in the
folder, what fails, too. An input may take five seconds of processor time. With --record a row is
added for every part that came to its end. Without clang, --standalone runs the same target on
random inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENGINE = ROOT / "src" / "codtdq" / "engine" / "cpu" / "csrc"
INCLUDE = ROOT / "src" / "codtdq" / "runtime" / "include"
sys.path[:0] = [str(HERE)]

from campaign import next_number

COMPILERS = ("clang++", "clang++-14", "clang++-16", "clang++-18")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
TARGETS = {"programs": "program_target", "kernels": "kernel_target"}
PART = 50_000  # inputs of a row
# -timeout is of the wall clock, for an input that waits; one that works ends by `time_limit.h`.
# Leaks are looked for once, at the end of a part, where LeakSanitizer fails the process.
LIMITS = ("-timeout=60", "-rss_limit_mb=2048", "-detect_leaks=0")
LIMITS += ("-len_control=0", "-print_final_stats=1")
LONGEST = {"programs": 65536, "kernels": 600}  # bytes of an input
# a fifth of the time of the small calls of kernels went into the choice of the next input
OPTIONS = {"programs": (), "kernels": ("-entropic=0",)}
# Half of the time of a kernel was spent on noting what its inner loops compare, for a dictionary of
# numbers that this target has already; edges count as before, and `untraced.cpp` takes these calls.
UNTRACED = tuple(
    f"-Wl,--wrap=__sanitizer_cov_trace_{kind}cmp{size}"
    for kind in ("", "const_")
    for size in (1, 2, 4, 8)
)


def find_compiler() -> str | None:
    """A clang that is installed."""
    return next((name for name in COMPILERS if shutil.which(name)), None)


def engine(folder: Path, compiler: str, coverage: bool) -> Path:
    """The engine as a static library, every instruction set of it."""
    extra = "-fno-sanitize-recover=all" + (" -fsanitize=fuzzer-no-link" if coverage else "")
    settings = {
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_CXX_FLAGS": extra,
        "COD_SANITIZE": "ON",
        "CMAKE_BUILD_TYPE": "Release",
    }
    words = [f"-D{name}={value}" for name, value in settings.items()]
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, *words], check=True, stdout=sys.stderr)
    subprocess.run(
        ["cmake", "--build", folder, "--target", "codtdq_static", "--parallel", "2"],
        check=True,
        stdout=sys.stderr,
    )
    return folder / "libcodtdq.a"


def build(name: str, folder: Path, compiler: str, library: Path, standalone: bool) -> Path:
    """A target, with libFuzzer or with the loop of `standalone.cpp`."""
    sources, kind = [HERE / f"{TARGETS[name]}.cpp"], ["-fsanitize=fuzzer"]
    if standalone:
        sources, kind = [*sources, HERE / "standalone.cpp"], []
    elif name == "kernels":
        sources, kind = [*sources, HERE / "untraced.cpp"], [*kind, *UNTRACED]
    target = folder / f"{TARGETS[name]}{'_standalone' if standalone else ''}"
    words = [compiler, "-std=gnu++17", *SANITIZERS, *kind, f"-I{ENGINE}", f"-I{INCLUDE}"]
    draft = target.with_name(f"{target.name}-{os.getpid()}")  # another run may be using the target
    words += [*map(str, sources), str(library), "-pthread", "-o", str(draft)]
    subprocess.run(words, check=True)
    return draft.replace(target)


def valid_files(name: str, folder: Path) -> list[Path]:
    """What mutations begin with."""
    if name != "programs":
        return []
    from programs import write_valid

    write_valid(folder)
    return sorted(folder.glob("*.codtdq"))


def run(
    name: str, target: Path, folder: Path, first: int, runs: int, seed: int = 1
) -> dict[str, float]:
    """Run a target of libFuzzer; its counts. What fails ends the script."""
    kept, valid = folder / f"kept-{name}-{seed}", folder / f"valid-{name}"
    for one in (kept, valid):
        one.mkdir(exist_ok=True)
    valid_files(name, valid)
    known = sum(1 for one in (kept, valid) for _ in one.iterdir())  # read again, no new inputs
    # a seed of its own for every part, which would else repeat the choices of the last one
    words = [target, kept, valid, f"-runs={known + runs}", f"-seed={seed * 1000 + first // PART}"]
    words += [*LIMITS, *OPTIONS[name], f"-max_len={LONGEST[name]}"]
    done = subprocess.run(words, cwd=folder, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.stderr[-4000:] + f"\nlibfuzzer: {name} failed; its input is in {folder}")
    found = dict(re.findall(r"stat::(\w+):\s+(\d+)", done.stderr))
    slowest = re.findall(r"slowest input: ([\d.]+) s", done.stderr)
    return {
        "first": first,
        "inputs": int(found["number_of_executed_units"]) - known,
        "crashes": 0,
        "hangs": 0,
        "corpus": len(list(kept.iterdir())),
        "slowest_seconds": float(slowest[-1]),
        "most_mib": int(found["peak_rss_mb"]),
    }


def run_standalone(
    name: str, target: Path, folder: Path, first: int, runs: int
) -> dict[str, float]:
    """Run a target by itself; its counts."""
    valid = folder / f"valid-{name}"
    valid.mkdir(exist_ok=True)
    words = [target, "--first", str(first), "--count", str(runs), *valid_files(name, valid)]
    strict = {
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, env={**os.environ, **strict}
    )
    if done.returncode:
        sys.exit(done.stderr[-4000:] + f"\nlibfuzzer: {name} failed")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    """Build and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--standalone", action="store_true", help="random inputs; g++ will do")
    parser.add_argument("--library", type=Path, help="a sanitized libcodtdq.a, if there is one")
    parser.add_argument("--record", type=Path, help="file that a row is added to")
    args = parser.parse_args()
    compiler = find_compiler() or ("g++" if args.standalone else None)
    if compiler is None:
        print("libfuzzer: no clang is installed; --standalone needs none", file=sys.stderr)
        return 2
    if args.library:
        compiler = "g++"  # whose sanitizers `make test-sanitize` has compiled it with
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    library = args.library or engine(folder / "engine", compiler, not args.standalone)
    target = build(args.target, folder, compiler, library, args.standalone)
    name = f"{args.target}, {'random' if args.standalone else 'libFuzzer'}"
    first = next_number(args.record, name, args.seed) if args.record else 0
    end = first + args.runs
    while first < end:
        part = min(PART, end - first)
        if args.standalone:
            found = run_standalone(args.target, target, folder, first, part)
        else:
            found = run(args.target, target, folder, first, part, args.seed)
        row = json.dumps({"target": name, "seed": args.seed, **found})
        print(row, flush=True)
        if args.record:
            with args.record.open("a", encoding="utf-8") as file:
                file.write(row + "\n")
        first += part
    return 0


if __name__ == "__main__":
    sys.exit(main())
