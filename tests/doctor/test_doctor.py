"""What the doctor says of the processor and of a missing GPU; CPUID values are made up."""

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import codtdq.doctor
from codtdq.cli import main
from codtdq.doctor import amx
from codtdq.doctor.cpuid import Registers, processor_cpuid

NOTHING = Registers(0, 0, 0, 0)
AMX = Registers(0, 0, 0, 1 << 22 | 1 << 24 | 1 << 25)
PALETTE = Registers(0x04002000, 0x00080040, 16, 0)
X86_LINUX = platform.machine() == "x86_64" and sys.platform.startswith("linux")


def processor(highest=0x20, **leaves):
    """A processor that answers with the given leaves, by names such as l7 and l1d_1."""
    table = {"l0": Registers(highest, 0, 0, 0), **leaves}

    def cpuid(leaf, subleaf=0):
        name = f"l{leaf:x}" + (f"_{subleaf}" if subleaf else "")
        # beyond the highest leaf, Intel's processors repeat the content of another one
        return table.get(name, NOTHING) if leaf <= highest else Registers(7, 7, 7, 7)

    return cpuid


WHOLE = processor(l7=AMX, l1d=Registers(1, 0, 0, 0), l1d_1=PALETTE)
HIDDEN = {
    "empty leaf": processor(l7=AMX),
    "palette without tiles": processor(l7=AMX, l1d=Registers(1, 0, 0, 0)),
    "leaf beyond the highest": processor(highest=0x1C, l7=AMX),
}


def test_amx_that_is_whole_or_absent_is_no_defect():
    assert amx.describe(WHOLE) == "available: bf16, tile, int8" and not amx.is_hidden(WHOLE)
    for none in (processor(), processor(highest=5), processor(highest=5, l7=AMX)):
        assert amx.describe(none) == "none on this processor" and not amx.is_hidden(none)
    assert amx.describe(None).startswith("unknown") and not amx.is_hidden(None)


@pytest.mark.parametrize("kind", HIDDEN)
def test_a_machine_that_hides_the_tiles_is_found(kind, monkeypatch, capsys):
    assert amx.is_hidden(HIDDEN[kind])
    monkeypatch.setattr(codtdq.doctor, "processor_cpuid", lambda: HIDDEN[kind])
    assert main(["doctor"]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "amx" in each]
    assert "hides CPUID leaf 0x1D" in line and "oneDNN" in line and "docs/speed.md" in line


@pytest.mark.skipif(not X86_LINUX, reason="CPUID is an instruction of x86, called on Linux")
def test_the_instruction_itself_answers():
    cpuid = processor_cpuid()
    assert cpuid is not None
    vendor = cpuid(0, 0)
    name = b"".join(part.to_bytes(4, "little") for part in (vendor.ebx, vendor.edx, vendor.ecx))
    assert name.decode() in Path("/proc/cpuinfo").read_text()
    flags = Path("/proc/cpuinfo").read_text()
    assert ("amx_tile" in flags) == ("tile" in amx.announced(cpuid))
    assert bool(cpuid(7, 0).ebx >> 5 & 1) == (" avx2 " in flags)


def test_other_processors_are_not_asked(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert processor_cpuid() is None


def test_no_gpu_is_no_fault(monkeypatch, capsys):
    from codtdq.engine.triton import device

    monkeypatch.delenv(device.INTERPRET, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    said = [facts["backends"]["triton"], *facts["gpu"].values()]
    assert any("none" in line for line in said)
    for line in said:
        assert not any(word in line for word in ("not available", "pip install", "missing", "sees"))


@pytest.mark.skipif(not X86_LINUX, reason="the tool traps an instruction of x86 on Linux")
def test_the_preload_tool_builds_and_changes_nothing_else(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source = Path(__file__).parents[2] / "benchmarks" / "amx_visible.c"
    library = tmp_path / "amx_visible.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, str(source), "-o", str(library)], check=True)
    program = (
        "from codtdq.doctor.cpuid import processor_cpuid as p; from codtdq.doctor import amx;"
        "c = p(); print(c(0, 0)[1:], c(1, 0).eax, amx.is_hidden(c))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
        for env in ({}, {"LD_PRELOAD": str(library)})
    ]
    plain, preloaded = runs
    assert plain.returncode == preloaded.returncode == 0, preloaded.stderr
    # vendor and model stay; AMX is hidden no more, where the machine can trap CPUID
    assert plain.stdout.rsplit(maxsplit=1)[0] == preloaded.stdout.rsplit(maxsplit=1)[0]
    assert preloaded.stdout.split()[-1] == "False" or "cannot make CPUID" in preloaded.stderr
