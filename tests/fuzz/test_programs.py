"""A short run of the fuzzers of program files; long ones by name.

`python tests/fuzz/programs.py --count N`, and `make fuzz-programs` for the target of libFuzzer.
"""

import libfuzzer
import pytest
from engine_cases import needs_engine
from programs import METHODS, Fuzzer

pytestmark = needs_engine


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


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", libfuzzer.TARGETS)
def test_the_targets_of_libfuzzer(name, tmp_path):
    compiler = libfuzzer.find_compiler()
    if compiler is None:
        pytest.skip("no clang is installed")
    library = libfuzzer.engine(tmp_path / "engine", compiler, coverage=True)
    target = libfuzzer.build(name, tmp_path, compiler, library, standalone=False)
    assert libfuzzer.run(name, target, tmp_path, 0, 20_000)["inputs"] >= 20_000
