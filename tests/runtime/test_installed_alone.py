"""codtdq-runtime in an environment of its own: numpy is all that comes with it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_cases import needs_engine

from codtdq.runtime import Runtime

pytestmark = [needs_engine, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
MOST_BYTES = 90e6  # with numpy, which alone has up to 80 MB with its own BLAS

PREDICT = """
import json, sys, time
began = time.process_time()
from codtdq.runtime import Runtime
took = time.process_time() - began
import numpy as np
mask = Runtime(sys.argv[1]).predict(np.load(sys.argv[2]))
np.save(sys.argv[3], mask)
try:
    import torch
    found = True
except ModuleNotFoundError:
    found = False
print(json.dumps({"torch": found, "import": took}))
"""


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, ROOT / "runtime")
    (found,) = folder.glob("codtdq_runtime-*.whl")
    return found


def test_the_commands_of_the_readme(tmp_path):
    """Export, install the runtime alone, predict: as they stand there."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Without torch\n")[1]
    lines = re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1].splitlines()
    assert len(lines) == 3
    photo = ROOT / "src" / "codtdq" / "data" / "samples" / "Imgs" / "grass.jpg"
    shutil.copy(photo, tmp_path / "photo.jpg")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    for line in lines:  # where `./runtime` is, is the checkout
        done = subprocess.run(
            line.replace("./runtime", f"{ROOT}/runtime"),
            shell=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    shown = run(tmp_path / "edge" / "bin" / "python", "-m", "pip", "list", "--format", "json")
    names = {one["name"].lower() for one in json.loads(shown)}
    assert names <= {"codtdq-runtime", "numpy", "pillow", "pip", "setuptools"}
    from PIL import Image

    mask = np.asarray(Image.open(tmp_path / "mask.png"))
    assert np.array_equal(mask, Runtime(tmp_path / "net.codtdq").predict(photo))
    assert 0.02 < (mask > 127).mean() < 0.9


def test_the_wheel_has_what_runs_and_nothing_else(wheel):
    listing = run(sys.executable, "-m", "zipfile", "-l", wheel)
    names = [line.split()[0] for line in listing.splitlines()[1:]]
    code = sorted(name for name in names if "dist-info" not in name)
    assert "codtdq/engine/cpu/lib/libcodtdq_native.so" in code
    assert "codtdq/runtime/include/codtdq.h" in code and "codtdq/runtime/runtime.py" in code
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert len(code) < 20 and not any("csrc" in name or "weights" in name for name in code)


def test_a_fresh_environment_predicts(wheel, exported, image, tmp_path):
    _, path = exported("cfrn-small")
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel)
    np.save(tmp_path / "image.npy", image)
    words = (path, tmp_path / "image.npy", tmp_path / "mask.npy")
    told = [json.loads(run(python, "-c", PREDICT, *words)) for _ in range(3)]
    assert not told[0]["torch"] and min(one["import"] for one in told) < 0.2
    assert np.array_equal(np.load(tmp_path / "mask.npy"), Runtime(path).predict(image))
    shown = json.loads(run(python, "-m", "pip", "list", "--format", "json"))
    assert {one["name"] for one in shown} <= {"codtdq-runtime", "numpy", "pip", "setuptools"}
    (site,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    bytes_of = {
        folder: sum(one.stat().st_size for one in site.glob(f"{folder}*/**/*") if one.is_file())
        for folder in ("codtdq", "numpy")
    }
    print(bytes_of)
    assert bytes_of["codtdq"] < 3e6 and sum(bytes_of.values()) < MOST_BYTES
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[images]")
    from PIL import Image

    Image.fromarray(image).save(tmp_path / "photo.png")
    out = tmp_path / "mask.png"
    run(python, "-m", "codtdq.runtime", path, tmp_path / "photo.png", "--out", out)
    assert np.array_equal(np.asarray(Image.open(out)), Runtime(path).predict(image))
