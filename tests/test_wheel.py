"""What a wheel holds: everything that a fresh install needs, and no sources of the library."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILD = """
import sys
from scikit_build_core.build import build_wheel
build_wheel(sys.argv[1], {"wheel.cmake": "false", "build-dir": sys.argv[1] + "/build"})
"""


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    """Bytes of every file of a wheel without the native library, whose build takes a minute."""
    pytest.importorskip("scikit_build_core")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-c", BUILD, str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.file_size for entry in archive.infolist()}


def test_models_and_pictures_come_along(sizes):
    for name in ("cfrn-small", "escnet-small", "vit-cod"):
        assert f"codtdq/weights/{name}.md" in sizes
        assert f"codtdq/weights/{name}.safetensors" in sizes
    packed = [name for name in sizes if name.startswith("codtdq/weights/vit-cod-w4a4/")]
    assert len(packed) == 2 and sum(sizes[name] for name in packed) <= 14e6
    samples = {Path(name).name for name in sizes if name.startswith("codtdq/data/samples/")}
    assert samples >= {"grass.jpg", "gravel.jpg", "bricks.jpg", "grass.png", "cat.jpg", "README.md"}


def test_licences_come_along(sizes):
    licences = {Path(name).name for name in sizes if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", "THIRD_PARTY.md", "LICENSE-Apache-2.0.txt"}
    assert "codtdq/weights/LICENSE-Apache-2.0.txt" in sizes


def test_nothing_else_is_large(sizes):
    assert "codtdq/weights/segformer-small.safetensors" not in sizes
    assert not [name for name in sizes if name.endswith((".cpp", ".pt", ".pth"))]
    large = {name for name, size in sizes.items() if size > 1e6}
    assert all(name.startswith("codtdq/weights/") for name in large)
    assert sum(sizes.values()) < 65e6
