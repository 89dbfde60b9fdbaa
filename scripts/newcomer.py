"""Walk a newcomer's path: the commands of the README in order, in a fresh environment.

Every command of the blocks `Install` and `Quick start` runs as it stands there, in a copy of the
committed files and a new virtual environment. It must end well, print what is expected of it and
leave the files that the README promises. A command that this script does not know is a failure
too: whoever changes the README says here what the new command is to do. What needs a released
checkpoint or a benchmark must fail in one line that names the missing file.

    python scripts/newcomer.py [--packages-of PYTHON] [--demo]

--packages-of: take torch and the like from another interpreter instead of downloading them; codtdq
itself is built and installed all the same. --demo: also run the demo and compare its table with
that of the tutorial.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOLERANCE = 0.006  # of S and MAE between machines: other instruction sets, other threads


@dataclass(frozen=True)
class Expected:
    """What a command is to do: exit code, text on either stream, files (patterns) it leaves."""

    code: int = 0
    says: str = ""
    files: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


# by the beginning of a command, in the order of the README
EXPECTED = {
    "codtdq --version": Expected(says=r"codtdq \d+\.\d+"),
    "codtdq export-synth": Expected(says="8 synthetic images", files=("synth/Imgs", "synth/GT")),
    "codtdq predict synth/Imgs --overlay": Expected(
        says=r"16 files written to masks\nexecuted: ", files=("masks",)
    ),
    "codtdq quantize --out small-w4a4": Expected(
        says=r"cod-tdq-plus, 124 of 124 operators quantized",
        files=("small-w4a4/model-*.safetensors", "small-w4a4/codtdq.json"),
        absent=("small-w4a4.unfinished",),
    ),
    "codtdq predict synth/Imgs --model small-w4a4": Expected(
        says=r"8 files written to masks-w4a4\nexecuted: (native|simulated)", files=("masks-w4a4",)
    ),
    "codtdq eval --method": Expected(says=r"cod-tdq-guarded +camosynth +1000[\s\S]*executed: "),
    "codtdq plan --model cfrn": Expected(says=r"185 of 185 quantized[\s\S]*MiB packed"),
    "codtdq diagnose": Expected(says="report.html in a browser", files=("runs/why/report.html",)),
    "codtdq quantize --model cfrn": Expected(2, r"error: .*cfrn\.pth.*\n$"),
}


class Walk:
    """A folder with a copy of the project and an environment, in which commands run."""

    def __init__(self, folder: Path, packages_of: str | None) -> None:
        self.project, self.work = folder / "project", folder / "work"
        self.failures: list[str] = []
        self.project.mkdir()
        self.work.mkdir()
        archive = subprocess.run(
            ["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE
        ).stdout
        subprocess.run(["tar", "-x", "-C", self.project], input=archive, check=True)
        self.packages_of = packages_of
        keep = ("PATH", "HOME", "LANG", "TMPDIR", "CC", "CXX", "OMP_NUM_THREADS")
        kept = {k: v for k, v in os.environ.items() if k in keep or k.startswith("PIP_")}
        self.env = kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "COLUMNS": "80"}

    def say(self, text: str) -> None:
        print(text, flush=True)

    def install(self, lines: list[str]) -> None:
        """The lines of `Install`; the activation is remembered instead of typed."""
        for line in lines:
            command = shlex.split(line, comments=True)
            if command[:3] == ["python3", "-m", "venv"]:
                command = [sys.executable, "-m", "venv", str(self.project / ".venv")]
                self.env["PATH"] = f"{self.project / '.venv' / 'bin'}:{self.env['PATH']}"
            elif command[:2] == ["pip", "install"] and self.packages_of:
                if command[2].startswith("torch"):
                    self._borrow()
                    continue
                command = [*command, "--no-deps", "--ignore-installed"]
            elif command[:1] == ["codtdq"]:
                self.run(line)
                continue
            elif command[:1] == ["make"]:  # another way to the same: that it is there is enough
                command = ["make", "--dry-run", "--silent", *command[1:]]
            self.say(f"$ {shlex.join(command)}")
            done = subprocess.run(
                command, cwd=self.project, env=self.env, stdout=subprocess.DEVNULL
            )
            if done.returncode:
                self.fail(f"{line}: exit code {done.returncode}")

    def _borrow(self) -> None:
        """Let the new environment see the packages of another interpreter, last in its path."""
        script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        other = subprocess.run(
            [self.packages_of, "-c", script], check=True, capture_output=True, text=True
        ).stdout.strip()
        site = next((self.project / ".venv" / "lib").glob("python*/site-packages"))
        (site / "zz-borrowed.pth").write_text(other + "\n")
        self.say(f"(packages of {self.packages_of} instead of a download)")

    def run(self, line: str) -> None:
        """One command of the README, against what is expected of it."""
        command = shlex.join(shlex.split(line, comments=True))
        wanted = next((e for start, e in EXPECTED.items() if command.startswith(start)), None)
        if wanted is None:
            self.fail(f"{command}: not known to this script; say in EXPECTED what it is to do")
            return
        start = time.monotonic()
        done = subprocess.run(
            command, shell=True, cwd=self.work, env=self.env, capture_output=True, text=True
        )
        self.say(f"$ {command}    ({time.monotonic() - start:.0f} s)")
        shown = done.stdout + done.stderr
        if done.returncode != wanted.code:
            self.fail(f"{command}: exit code {done.returncode}, expected {wanted.code}\n{shown}")
        if not re.search(wanted.says, shown):
            self.fail(f"{command}: did not print {wanted.says!r}\n{shown}")
        if done.returncode and done.stderr.count("\n") != 1:
            self.fail(f"{command}: its error is not one line\n{done.stderr}")
        for name in wanted.files:
            if not any(self.work.glob(name)):
                self.fail(f"{command}: left no {name}")
        for name in wanted.absent:
            if any(self.work.glob(name)):
                self.fail(f"{command}: left {name}")

    def python(self, text: str) -> None:
        """The Python block, and that the restored model gives the same bits."""
        check = "\nx = batches[0]\nassert torch.equal(again(x), small(x))\nprint('the same bits')\n"
        done = subprocess.run(
            ["python", "-c", text + check],
            cwd=self.work,
            env=self.env,
            capture_output=True,
            text=True,
        )
        self.say("$ python (the block of the README)")
        if done.returncode or "the same bits" not in done.stdout:
            self.fail(f"the Python block failed\n{done.stdout}{done.stderr}")

    def demo(self, page: str) -> None:
        """`codtdq demo` against the table of the tutorial."""
        done = subprocess.run(
            ["codtdq", "demo", "--json"],
            cwd=self.work,
            env=self.env,
            capture_output=True,
            text=True,
        )
        self.say("$ codtdq demo")
        if done.returncode:
            self.fail(f"the demo failed\n{done.stderr}")
            return
        scores = json.loads(done.stdout)["scores"]
        cells = r"\| ([\d.]+) / ([\d.]+) \| ([\d.]+) / ([\d.]+) \|"
        rows = re.findall(rf"^\| ([^|]+?) {cells}$", page, re.MULTILINE)
        if len(rows) != len(scores["cfrn-small"]):
            self.fail(
                f"the tutorial shows {len(rows)} settings, the demo {len(scores['cfrn-small'])}"
            )
        settings = list(scores["cfrn-small"])
        for (title, *numbers), setting in zip(rows, settings):
            found = [scores[m][setting][k] for m in scores for k in ("S", "MAE")]
            for number, value in zip(numbers, found):
                if abs(float(number) - value) > TOLERANCE:
                    self.fail(f"{title}: the tutorial says {number}, the demo {value:.4f}")

    def fail(self, text: str) -> None:
        self.failures.append(text)
        self.say(f"FAILED: {text}")


def section(readme: str, title: str) -> str:
    return re.split(r"^## ", readme.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def commands(text: str) -> list[str]:
    """Lines of shell blocks; what is joined by && is a line each."""
    lines = [
        line.strip()
        for language, block in BLOCK.findall(text)
        if language == "sh"
        for line in block.splitlines()
    ]
    return [part.strip() for line in lines if line for part in line.split("&&")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages-of", metavar="PYTHON")
    parser.add_argument("--demo", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        walk = Walk(Path(folder), args.packages_of)
        readme = (walk.project / "README.md").read_text(encoding="utf-8")
        lines = commands(section(readme, "Install"))
        walk.install([line for line in lines if not line.startswith(". ")])
        for line in commands(section(readme, "Quick start")):
            walk.run(line)
        for language, text in BLOCK.findall(section(readme, "Quick start")):
            if language == "python":
                walk.python(text)
        if args.demo:
            tutorial = walk.project / "docs" / "tutorial.md"
            walk.demo(tutorial.read_text(encoding="utf-8"))
    print(f"{len(walk.failures)} failures" if walk.failures else "the newcomer arrives")
    return 1 if walk.failures else 0


if __name__ == "__main__":
    sys.exit(main())
