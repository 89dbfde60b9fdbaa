"""The runtime on ARM, in an emulator: `make test-arm`.

The library and the C example are built with a cross-compiler and read the program file that an x86
machine wrote.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_cases import needs_engine
from masks_in_c import EXAMPLE, ROOT, STRICT, read_pgm, write_ppm

from codtdq.runtime import Runtime, include_dir

pytestmark = [needs_engine, pytest.mark.slow]
TARGET = "aarch64-linux-gnu"
PLAIN = "cortex-a72"  # a processor without the instructions of any set: plain C++ runs


def need(*tools):
    for tool in tools:
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")


@pytest.fixture(scope="module")
def mask_of(tmp_path_factory, exported, image):
    """The mask that the example computes on a processor of the emulator, from a network's file."""
    need(f"{TARGET}-g++", f"{TARGET}-gcc", "qemu-aarch64", "cmake")
    folder = tmp_path_factory.mktemp("arm")
    build = Path(os.environ.get("CODTDQ_ARM_BUILD", folder / "build"))
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": f"{TARGET}-g++",
        "COD_WERROR": "ON",
    }
    words = [f"-D{name}={value}" for name, value in settings.items()]
    subprocess.run(["cmake", "-S", str(ROOT), "-B", str(build), *words], check=True)
    subprocess.run(["cmake", "--build", str(build), "--target", "codtdq_native"], check=True)
    (library,) = build.glob("libcodtdq_native.so")
    program = folder / "mask"
    subprocess.run(
        [
            *(f"{TARGET}-gcc", *STRICT, f"-I{include_dir()}", str(EXAMPLE), str(library)),
            *(f"-Wl,-rpath,{library.parent}", "-o", str(program)),
        ],
        check=True,
    )
    write_ppm(folder / "photo.ppm", image)

    def run(name, *processor):
        _, path = exported(name)
        emulator = ["qemu-aarch64", "-L", f"/usr/{TARGET}", *processor]
        words = [str(program), str(path), str(folder / "photo.ppm"), str(folder / "mask.pgm")]
        done = subprocess.run([*emulator, *words], check=True, capture_output=True, text=True)
        assert f"{name}, cod-tdq: input" in done.stdout
        return read_pgm(folder / "mask.pgm")

    return run


PREDICT = """
import sys
import numpy as np
from codtdq.runtime import Runtime
np.save(sys.argv[3], Runtime(sys.argv[1]).predict(np.load(sys.argv[2])))
"""


def plain_mask(path, image, folder):
    """The mask of this machine in plain C++, the set that every processor runs."""
    np.save(folder / "image.npy", image)
    words = [str(path), str(folder / "image.npy"), str(folder / "mask.npy")]
    environment = {**os.environ, "CODTDQ_NATIVE": "generic"}
    subprocess.run([sys.executable, "-c", PREDICT, *words], check=True, env=environment)
    return np.load(folder / "mask.npy")


def test_plain_code_gives_the_same_bytes_on_both_processors(mask_of, exported, image, tmp_path):
    here = plain_mask(exported("cfrn-small")[1], image, tmp_path)
    assert np.array_equal(mask_of("cfrn-small", "-cpu", PLAIN), here)


def test_neon_gives_the_mask_of_this_machine(mask_of, exported, image):
    """Sums of floats have as many lanes as a set: masks agree, bytes need not."""
    here = Runtime(exported("cfrn-small")[1]).predict(image).astype(int)
    gap = np.abs(mask_of("cfrn-small").astype(int) - here)
    print(f"mean difference {gap.mean() / 255:.1e}, equal bytes {(gap == 0).mean():.4f}")
    assert gap.mean() / 255 < 2e-3
