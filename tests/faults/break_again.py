"""Bring back what went wrong once, one cause at a time, and see that its tests fail.

    python tests/faults/break_again.py --record results/faults/broken.jsonl
    python tests/faults/break_again.py NaN threads        only breaks with one of these words

Each change of `causes.py` is made in a copy of the tree, whose package takes the place of the
installed one; the tree itself stays as it is. A change of the engine is compiled there. The
tests of a change pass before it, and one fails after it, or the script counts it as unnoticed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "passive"  # more threads than cores that spin take minutes
import pytest
import torch  # noqa: F401  # once, for all children
from causes import CAUSES, CSRC, Break

ROOT = Path(__file__).parents[2]

# an editable install finds its modules by a hook, which would come before the copy's
HOOK_OFF = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "Editable" not in type(one).__name__
                    and "Redirecting" not in type(one).__name__]
"""


def copy_tree(folder: Path) -> None:
    """What git has, and a hook that takes the installed package out of the way."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("docs/", "results/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOOK_OFF)


def installed_engine() -> str:
    """The engine that the tests of an unchanged tree use."""
    code = "from codtdq.engine.cpu import library; print(library.path())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def compiled(tree: Path) -> str:
    """The engine of the copy."""
    build = tree / "build"
    words = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS=-O1"]
    for command in (["-S", tree, "-B", build, *words], ["--build", build, "--parallel", "2"]):
        subprocess.run(["cmake", *command], check=True, stdout=subprocess.DEVNULL)
    return str(next(build.rglob("libcodtdq_native.so")))


class Tally:
    """A plugin of pytest that counts."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.passed += report.when == "call" and report.passed
        self.failed += report.failed


def run_tests(tree: Path, tests: tuple[str, ...], engine: str) -> tuple[int, int]:
    """Run tests in this process, which has not imported the package so far."""
    paths = [str(tree / "hook"), str(tree / "src")]
    os.environ.update(PYTHONPATH=os.pathsep.join(paths), CODTDQ_NATIVE_LIBRARY=engine)
    os.environ.pop("CODTDQ_FAULTS", None)
    os.chdir(tree)
    sys.path[:0] = paths
    exec(HOOK_OFF)
    tally = Tally()
    words = ["-p", "no:cacheprovider", "-m", "not gpu", "-x", *tests]
    ended = int(pytest.main(words, plugins=[tally]))
    return (-1, -1) if ended not in (0, 1) else (tally.passed, tally.failed)


def outcome(tree: Path, tests: tuple[str, ...], engine: str) -> tuple[int, int]:
    """How many tests passed, and whether one failed; a process that died is one that failed.

    In a child that has torch from here, whose import takes longer than most tests.
    """
    into, out_of = os.pipe()
    child = os.fork()
    if not child:
        said = os.open(tree / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.write(out_of, json.dumps(run_tests(tree, tests, engine)).encode())
        os._exit(0)
    os.close(out_of)
    with os.fdopen(into) as stream:
        found = stream.read()
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0:
        return 0, 1
    passed, failed = json.loads(found or "[-1, -1]")
    if passed < 0 or passed + failed == 0:
        sys.exit((tree / "said.txt").read_text()[-3000:] + "\nbreak_again: no outcome")
    return passed, failed


def try_one(one: Break, tree: Path, engine: str) -> dict[str, Any]:
    """A row: how many of its tests passed without and with the change, up to a failure."""
    path = tree / one.file
    sound = path.read_text(encoding="utf-8")
    if sound.count(one.old) != 1:
        sys.exit(f"break_again: {one.file} has {sound.count(one.old)} of {one.old!r}")
    before = outcome(tree, one.tests, engine)
    path.write_text(sound.replace(one.old, one.new), encoding="utf-8")
    try:
        passed, failed = outcome(
            tree, one.tests, compiled(tree) if one.file.startswith(CSRC) else engine
        )
    finally:
        path.write_text(sound, encoding="utf-8")
    return {
        "when": one.when,
        "file": one.file,
        "tests": list(one.tests),
        "passed before": before[0],
        "failed before": before[1],
        "passed": passed,
        "failed": failed,
    }


def main() -> int:
    """Break one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only breaks whose description has one of them")
    parser.add_argument("--record", type=Path, help="file that a row is added to")
    args = parser.parse_args()
    chosen = [
        one
        for cause in CAUSES
        for one in cause.breaks
        if not args.words or any(word in one.when for word in args.words)
    ]
    engine, missed = installed_engine(), 0
    with tempfile.TemporaryDirectory(prefix="codtdq-broken-") as name:
        copy_tree(Path(name))
        for one in chosen:
            row = try_one(one, Path(name), engine)
            print(json.dumps(row), flush=True)
            noticed = not row["failed before"] and row["failed"]
            missed += not noticed
            if args.record and noticed:
                with args.record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    print(f"{len(chosen)} causes brought back, {missed} unnoticed")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
