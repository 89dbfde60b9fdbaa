"""The engine's self-test in C++: on this processor, on ARM through an emulator, in Node."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ENGINE = ROOT / "src" / "codtdq" / "engine" / "cpu" / "csrc"
FLAGS = (
    "-std=gnu++17",
    "-O1",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    f"-I{ENGINE}",
    f"-I{ROOT / 'src' / 'codtdq' / 'runtime' / 'include'}",
)
PARTS = (
    "quantize_groups",
    "carry kind 0",
    "carry kind 7",
    "carry kind 9",
    "carrier linear",
    "carrier conv",
    "carrier depthwise",
)
# by processor of the compiler
SETS_OF = {
    "x86_64": ("AVX2", "AVX512", "AVXVNNI", "AMX"),
    "aarch64": ("NEON", "I8MM"),
    "wasm32": ("WASM",),
}
# Sets whose instructions hardly any machine has, once more in a form that more of them run.
STANDS_FOR = {"AMX_EMULATED": "AMX", "AVXVNNI_EVEX": "AVXVNNI"}
EVEX = ["-mavx512f", "-mavx512vl", "-mavx512vnni"]


def engine_sources(processor: str) -> dict[Path, list[str]]:
    """Every source of the engine with its own flags, as CMakeLists.txt lists them."""
    listing = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    library = re.search(r"add_library\(codtdq_objects(.*?)\)\n", listing, re.DOTALL)
    assert library, "CMakeLists.txt has no add_library(codtdq_objects ...)"
    plain = re.findall(r"/(\w+\.cpp)", library.group(1))
    special = {
        name: (file, flags.split())
        for name, file, flags in re.findall(
            r"^ *add_instruction_set\((\w+) (\S+)\s+([^)]*)\)", listing, re.MULTILINE
        )
    }
    names = SETS_OF.get(processor, ())
    stand_ins = {name: of for name, of in STANDS_FOR.items() if of in names}
    defines = [f"-DCOD_HAVE_{name}" for name in (*names, *stand_ins)]
    sources = {ENGINE / file: defines for file in plain}
    sources |= {ENGINE / special[name][0]: defines + special[name][1] for name in names}
    for name, original in stand_ins.items():
        flags = [flag for flag in special[original][1] if flag != "-mavxvnni"] + EVEX
        sources[Path(__file__).parent / f"{name.lower()}.cpp"] = defines + flags
    return sources


def processor_of(compiler: str) -> str:
    """The processor that a compiler writes code for."""
    target = subprocess.run([compiler, "-dumpmachine"], check=True, capture_output=True, text=True)
    return target.stdout.partition("-")[0]


def build(
    compiler: str,
    folder: Path,
    link: Sequence[str] = ("-pthread",),
    each: Sequence[str] = (),
    name: str = "selftest",
) -> Path:
    """The self-test program, its sources compiled side by side; each: flags of all of them."""
    sources = engine_sources(processor_of(compiler))
    for source in sorted(Path(__file__).parent.glob("selftest*.cpp")):
        sources[source] = []
    running = []
    for source, flags in sources.items():
        command = [compiler, *FLAGS, *each, *flags, "-c", str(source)]
        command += ["-o", f"{folder / source.stem}.o"]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate()[1] for process in running]
    assert not any(process.returncode for process in running), "\n".join(errors)
    objects = [f"{folder / source.stem}.o" for source in sources]
    program = folder / name
    subprocess.run([compiler, *link, *objects, "-o", str(program)], check=True)
    return program


def run(*command: str) -> list[str]:
    """Lines that a run of the self-test printed; a failed check shows all failed ones."""
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    failures = [line for line in lines if line.startswith("FAIL")]
    assert done.returncode == 0, "\n".join([*failures, *lines[-1:], done.stderr])
    return lines


def need(*tools: str) -> str:
    """The first of the tools that is installed; otherwise the test is skipped."""
    for tool in tools:
        if shutil.which(tool):
            return tool
    pytest.skip(f"none of {', '.join(tools)} is installed")


def test_every_set_of_this_processor(tmp_path: Path) -> None:
    lines = run(str(build(need("g++", "clang++"), tmp_path)))
    sets = lines[0].removeprefix("sets: ").split()
    assert sets[-1] == "generic"
    for name in sets:  # every set really went through every part
        for part in PARTS:
            assert any(line.startswith(f"ok   {name} {part}") for line in lines), (name, part)
    assert re.fullmatch(r"[1-9]\d* passed, 0 failed", lines[-1])


def test_no_set_shares_functions(tmp_path: Path) -> None:
    """The linker would merge them: every set would run the code of one, with its instructions."""
    compiler = need("g++", "clang++")
    build(compiler, tmp_path)
    for name in (*SETS_OF.get(processor_of(compiler), ()), "GENERIC"):
        listing = subprocess.run(
            [need("nm"), f"{tmp_path / name.lower()}.o"], check=True, capture_output=True, text=True
        )
        shared = [line for line in listing.stdout.splitlines() if line.split()[-2] in "WVu"]
        assert not shared, f"{name}: {shared}"


@pytest.mark.slow
def test_arm_through_an_emulator(tmp_path: Path) -> None:
    compiler = need("aarch64-linux-gnu-g++")
    emulator = need("qemu-aarch64", "qemu-aarch64-static")
    program = str(build(compiler, tmp_path, ["-static", "-pthread"]))
    lines = run(emulator, program)
    assert lines[0] == "sets: neon-i8mm neon-dotprod generic"
    assert re.fullmatch(r"[1-9]\d* passed, 0 failed", lines[-1])
    # a processor without an instruction must not be offered the set that needs it
    assert run(emulator, "-cpu", "neoverse-n1", program, "--list") == ["sets: neon-dotprod generic"]
    assert run(emulator, "-cpu", "cortex-a72", program, "--list") == ["sets: generic"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_webassembly_in_node(tmp_path: Path) -> None:
    """No thread starts there: the caller does every job alone."""
    compiler, node = need("em++"), need("node")
    # exceptions: a thread that is refused is one; both sets with vectors, as make wasm has them
    each = ["-fwasm-exceptions", "-msimd128"]
    link = ["-O1", *each, "-sALLOW_MEMORY_GROWTH", "-sEXIT_RUNTIME", "-sSINGLE_FILE"]
    lines = run(node, str(build(compiler, tmp_path, link, each, "selftest.js")))
    assert lines[0] == "sets: wasm-simd128 generic"
    for part in PARTS:
        assert any(line.startswith(f"ok   wasm-simd128 {part}") for line in lines), part
    assert re.fullmatch(r"[1-9]\d* passed, 0 failed", lines[-1])


@pytest.mark.slow
def test_webassembly_rounds_fused_sums_once(tmp_path: Path) -> None:
    """Without an instruction for it: sums of doubles, whose second rounding must not show."""
    source, found = Path(__file__).parent / "fused_sums.cpp", []
    for compiler, flags in ((need("g++", "clang++"), []), (need("em++"), ["-msimd128"])):
        made = tmp_path / f"{compiler}.o"
        subprocess.run([compiler, *FLAGS, *flags, "-c", str(source), "-o", str(made)], check=True)
        link = ["-sSINGLE_FILE"] if flags else []
        program = f"{tmp_path / compiler}.js"
        subprocess.run([compiler, "-O1", *link, str(made), "-o", program], check=True)
        found.append(run(*([need("node")] if flags else []), program))
    assert found[0] == found[1] and len(found[0][0]) == 16
