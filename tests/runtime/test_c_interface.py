"""The C interface: the example is built with the system's compiler, and gives Python's masks."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from engine_cases import needs_engine
from masks_in_c import EXAMPLE, ROOT, STRICT, read_pgm, write_ppm

from codtdq.runtime import Runtime, include_dir, library_path

pytestmark = needs_engine


def compiler():
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return name
    pytest.skip("no C compiler is installed")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The example, linked with the shared library."""
    out = tmp_path_factory.mktemp("c") / "mask"
    library = library_path()
    subprocess.run(
        [
            *(compiler(), *STRICT, f"-I{include_dir()}", str(EXAMPLE), str(library)),
            *(f"-Wl,-rpath,{library.parent}", "-o", str(out)),
        ],
        check=True,
    )
    return out


def test_the_example_writes_the_mask_of_python(exported, image, program, tmp_path):
    _, path = exported("cfrn-small")
    write_ppm(tmp_path / "photo.ppm", image)
    words = [program, path, tmp_path / "photo.ppm", tmp_path / "mask.pgm"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert "cfrn-small, cod-tdq: input 160 x 160" in done.stdout
    assert np.array_equal(read_pgm(tmp_path / "mask.pgm"), Runtime(path).predict(image))


def test_the_example_says_what_is_wrong(exported, program, tmp_path):
    (tmp_path / "bad.codtdq").write_bytes(b"x" * 100)
    done = subprocess.run(
        [program, tmp_path / "bad.codtdq", "a", "b"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "not a program file" in done.stderr
    assert done.stderr.count("\n") == 1
    _, path = exported("cfrn-small")
    done = subprocess.run([program, path, __file__, "b"], capture_output=True, text=True)
    assert done.returncode == 2 and "cannot be read as a binary PPM" in done.stderr


CALLS = r"""
#include <stdio.h>
#include <string.h>
#include "codtdq.h"
#define CHECK(what) do { if (!(what)) { printf("line %d\n", __LINE__); return 1; } } while (0)
int main(int count, char **words) {
  char error[CODTDQ_ERROR_BYTES], tiny[4] = {1, 1, 1, 7};
  static float x[3 * 160 * 160], y[160 * 160];
  static unsigned char pixels[3 * 4 * 5], mask[4 * 5];
  codtdq_shape shape;
  codtdq_network *network;
  CHECK(count == 2 && codtdq_version() == CODTDQ_VERSION);
  CHECK(!codtdq_open(NULL, 1, error, sizeof error) && strlen(error));
  CHECK(!codtdq_open("/nowhere/at/all", 1, error, sizeof error) && strlen(error));
  CHECK(!codtdq_open("/nowhere/at/all", 1, tiny, 3) && strlen(tiny) == 2 && tiny[3] == 7);
  CHECK(!codtdq_open("/nowhere/at/all", 1, NULL, 0));
  CHECK(!codtdq_open_memory(NULL, 5, 1, error, sizeof error));
  CHECK(!codtdq_open_memory("abc", 3, 1, error, sizeof error) && strlen(error));
  network = codtdq_open(words[1], 1, error, sizeof error);
  CHECK(network && !strlen(error) && codtdq_programs(network) == 1);
  CHECK(codtdq_describe(network, 0, &shape) == CODTDQ_OK && shape.input_count == 3 * 160 * 160);
  CHECK(codtdq_describe(network, 1, &shape) == CODTDQ_BAD_ARGUMENT);
  CHECK(codtdq_describe(network, -1, &shape) == CODTDQ_BAD_ARGUMENT);
  CHECK(codtdq_describe(network, 0, NULL) == CODTDQ_BAD_ARGUMENT);
  CHECK(!strcmp(codtdq_text(network, "model"), "cfrn-small") && !codtdq_text(network, "x"));
  CHECK(codtdq_key(network, 0) && !codtdq_key(network, 1000) && !codtdq_key(network, -1));
  CHECK(codtdq_constant_bytes(network) > 1000000);
  CHECK(codtdq_run(network, 0, x, 3 * 160 * 160, y, 160 * 160, 1, NULL, 0) == CODTDQ_OK);
  CHECK(codtdq_run(network, 0, x, 5, y, 160 * 160, 1, error, sizeof error) == CODTDQ_BAD_ARGUMENT);
  CHECK(codtdq_run(network, 0, NULL, 5, y, 5, 1, error, sizeof error) == CODTDQ_BAD_ARGUMENT);
  CHECK(codtdq_run(network, 7, x, 5, y, 5, 1, error, sizeof error) == CODTDQ_BAD_ARGUMENT);
  CHECK(!codtdq_predict(network, 0, pixels, 60, 4, 5, mask, 20, 1, error, sizeof error));
  CHECK(codtdq_predict(network, 0, pixels, 59, 4, 5, mask, 20, 1, error, sizeof error));
  CHECK(codtdq_predict(network, 0, pixels, 60, 4, 5, mask, 19, 1, error, sizeof error));
  CHECK(codtdq_predict(network, 0, pixels, 60, -4, -5, mask, 20, 1, error, sizeof error));
  CHECK(codtdq_predict(network, 0, pixels, 60, 1L << 40, 5, mask, 20, 1, error, sizeof error));
  codtdq_close(network);
  codtdq_close(NULL);
  printf("ok\n");
  return 0;
}
"""


def test_every_function_with_right_and_wrong_arguments(exported, tmp_path):
    (tmp_path / "calls.c").write_text(CALLS)
    library = library_path()
    words = [compiler(), "-std=c99", f"-I{include_dir()}", str(tmp_path / "calls.c"), str(library)]
    out = str(tmp_path / "calls")
    subprocess.run([*words, f"-Wl,-rpath,{library.parent}", "-o", out], check=True)
    done = subprocess.run([out, exported("cfrn-small")[1]], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n")


def test_the_library_shows_the_interface_and_nothing_else():
    if not shutil.which("nm"):
        pytest.skip("nm is not installed")
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library_path())], capture_output=True, text=True
    ).stdout
    names = {line.split()[-1] for line in listing.splitlines()}
    assert {"codtdq_open", "codtdq_run", "codtdq_predict", "codtdq_close"} <= names
    assert not [name for name in names if "3cod" in name]  # of the namespace inside


@pytest.mark.slow
def test_a_static_library_is_all_that_a_program_needs(exported, image, tmp_path):
    """From the sources: configured, built, linked into one file that loads no library of ours."""
    for tool in ("cmake", "c++"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    build = Path(os.environ.get("CODTDQ_STATIC_BUILD", tmp_path / "build"))
    subprocess.run(["cmake", "-S", str(ROOT), "-B", str(build)], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(build), "--target", "codtdq_static"], check=True)
    (library,) = build.glob("libcodtdq.a")
    mask_o, out = str(tmp_path / "mask.o"), str(tmp_path / "mask")
    subprocess.run(
        [compiler(), *STRICT, f"-I{include_dir()}", "-c", str(EXAMPLE), "-o", mask_o], check=True
    )
    subprocess.run(["c++", mask_o, str(library), "-pthread", "-o", out], check=True)
    write_ppm(tmp_path / "photo.ppm", image)
    _, path = exported("cfrn-small")
    subprocess.run([out, path, tmp_path / "photo.ppm", tmp_path / "mask.pgm"], check=True)
    assert np.array_equal(read_pgm(tmp_path / "mask.pgm"), Runtime(path).predict(image))
    loaded = subprocess.run(["ldd", out], capture_output=True, text=True).stdout
    assert "codtdq" not in loaded
