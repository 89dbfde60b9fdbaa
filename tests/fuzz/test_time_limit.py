"""An input that works for too long ends a target, with its number."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TARGET = """
#include "time_limit.h"
#include <cstdint>
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *, size_t) {
  static volatile int calls = 0;
  const fuzz::TimeLimit limit;
  while (++calls == SPINS) calls = calls - 1;
  return 0;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("spins", [0, 4])
def test_a_target_that_works_too_long_is_ended(tmp_path, spins):
    (tmp_path / "target.cpp").write_text(TARGET)
    words = ["g++", "-std=gnu++17", "-fsanitize=address", f"-DSPINS={spins}", f"-I{HERE}"]
    words += ["target.cpp", HERE / "standalone.cpp", "-o", "target"]
    subprocess.run(words, cwd=tmp_path, check=True)
    run = [tmp_path / "target", "--first", "10", "--count", "5"]
    done = subprocess.run(run, capture_output=True, text=True)
    if spins:
        assert done.returncode != 0 and done.stdout == ""
        assert "over 5 s of processor time" in done.stderr and "input 13" in done.stderr
    else:
        assert done.returncode == 0 and json.loads(done.stdout)["slowest_seconds"] < 1
