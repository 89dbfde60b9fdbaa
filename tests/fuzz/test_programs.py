"""A short run of the fuzzers of program files; long ones by name.

`python tests/fuzz/programs.py --count N`, and `make fuzz-programs` for the target of libFuzzer.
"""

import subprocess
from pathlib import Path

import pytest
from engine_cases import needs_engine
from programs import METHODS, Fuzzer
from test_selftest import ENGINE, engine_sources, need

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
pytestmark = needs_engine
SANITIZED = ("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    return Fuzzer(tmp_path_factory.mktemp("fuzz"))


def test_mutated_files_are_refused_in_one_line_or_run(fuzzer):
    for number in range(1500):
        fuzzer.one(number, seed_number=1)
    assert fuzzer.counts["refused"] > 500  # mutations do harm
    assert fuzzer.counts["run"] > 50  # and not all of them
    assert [seed.method for seed in fuzzer.seeds] == list(METHODS)


@pytest.mark.slow
def test_a_long_run(fuzzer):
    for number in range(50_000):
        fuzzer.one(number, seed_number=2)


def build_target(folder, compiler):
    """The target of libFuzzer with the plain kernels, under sanitizers."""
    plain = [path for path in engine_sources("none") if path.name != "generic.cpp"]
    include = ROOT / "src" / "codtdq" / "runtime" / "include"
    flags = ["-std=gnu++17", *SANITIZED, f"-I{ENGINE}", f"-I{include}"]
    sources = [*plain, ENGINE / "generic.cpp", HERE / "program_file.cpp"]
    objects = []
    for source in sources:
        objects.append(str(folder / f"{source.stem}.o"))
        subprocess.run([compiler, *flags, "-c", str(source), "-o", objects[-1]], check=True)
    target = folder / "program_file"
    subprocess.run([compiler, *SANITIZED, *objects, "-pthread", "-o", str(target)], check=True)
    return target


@pytest.mark.slow
def test_the_target_of_libfuzzer(tmp_path, fuzzer, tmp_path_factory):
    target = build_target(tmp_path, need("clang++", "clang++-14", "clang++-16"))
    corpus, found = tmp_path_factory.mktemp("corpus"), tmp_path_factory.mktemp("found")
    Fuzzer(corpus)
    done = subprocess.run(
        [
            *(
                str(target),
                str(found),
                str(corpus),
                "-runs=20000",
                "-timeout=20",
                "-rss_limit_mb=4096",
            ),
            *("-max_len=65536", "-seed=1", "-print_final_stats=1"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
