"""Everybody held to one instruction set: switches, the fresh process, and what shows of them."""

import json

import pytest
import tiny_model

from codtdq.cli import main
from codtdq.engine.cpu import library
from codtdq.lab.bench.speed import hold, hold_check
from codtdq.lab.commands.bench_speed_latency import HOLDS
from codtdq.native import OTHER_FILE

RICH = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile"]


def test_every_set_has_every_switch():
    assert tuple(hold.SWITCHES) == tuple(hold.ABOVE) == tuple(hold_check.WIDER) == HOLDS
    assert len({frozenset(switches) for switches in hold.SWITCHES.values()}) == 1


def test_a_process_is_held_when_all_switches_are_set():
    held = dict(hold.SWITCHES["avx2"])
    assert hold.is_held("avx2", held) and not hold.is_held("avx512-vnni", held)
    held.pop(hold.ATEN)
    assert not hold.is_held("avx2", held)
    free = hold.without_switches({**hold.SWITCHES["avx2"], "HOME": "/"})
    assert free == {"HOME": "/"}


def test_what_a_processor_has_beyond_a_set():
    assert hold.more_than("avx2", RICH) == ["avx512f", "amx_tile"]
    assert hold.more_than("avx512-vnni", RICH) == ["avx512_bf16", "amx_tile"]
    assert hold.more_than("avx512-vnni", ["avx2", "avx512f", "avx512_vnni"]) == []


def test_kernels_decide_and_else_speed_does():
    free = {"gops": 100.0, "kernels": ["brgemm_avx512_i8"]}
    assert hold_check.judge(
        "openvino", "avx2", free, {"gops": 40.0, "kernels": ["jit_gemm_i8"]}
    ).held
    assert not hold_check.judge("openvino", "avx2", free, free).held
    named = {"gops": 99.0, "kernels": ["AVX2", "oneDNN: Intel AVX2"]}
    found = hold_check.judge("torch", "avx2", {"gops": 100.0, "kernels": ["AVX512"]}, named)
    assert found.held and "0.99 of its free speed" in found.evidence
    bf16 = {"gops": 100.0, "kernels": ["oneDNN: Intel AVX-512 with bfloat16 support"]}
    assert not hold_check.judge("torch", "avx512-vnni", bf16, bf16).held
    same = hold_check.judge(
        "onnxruntime", "avx2", {"gops": 10, "kernels": []}, {"gops": 10, "kernels": []}
    )
    assert not same.held and "it has no switch" in same.evidence
    slower = {"gops": 4, "kernels": []}
    assert hold_check.judge("other", "avx2", {"gops": 10, "kernels": []}, slower).held
    died = hold_check.judge("openvino", "avx2", free, {"failed": "died of SIGSEGV"})
    assert not died.held and "SIGSEGV" in died.evidence


def test_libraries_are_probed_free_and_held(monkeypatch):
    monkeypatch.setenv(hold.ATEN, "avx2")
    asked = []

    def probe(families, variables):
        asked.append((families, variables.get(hold.ATEN), variables.get(hold.ONEDNN)))
        return {families[0]: {"gops": 1.0 if len(asked) % 2 else 0.4, "kernels": []}}

    found = hold_check.check_families(["torch", "openvino"], "avx512-vnni", probe, RICH)
    held = ("avx512", "AVX512_CORE_VNNI")
    assert asked == [
        (["torch"], None, None),
        (["torch"], *held),
        (["openvino"], None, None),
        (["openvino"], *held),
    ]
    assert found["torch"] == {"held": True, "evidence": "product at 0.40 of its free speed"}
    asked.clear()
    plain = hold_check.check_families(["torch"], "avx2", probe, ["avx2"])
    assert plain["torch"]["held"] and "nothing above avx2" in plain["torch"]["evidence"]
    assert asked == []


def test_a_probe_that_dies_is_the_result(tmp_path, monkeypatch):
    script = tmp_path / "probe.py"
    monkeypatch.setattr(hold_check, "PROBE", script)
    script.write_text("import os; os.kill(os.getpid(), 4)")
    assert hold_check.run_probe(["x"], {})["x"] == {"failed": "its process died of SIGILL"}
    script.write_text("raise SystemExit('no library')")
    assert hold_check.run_probe(["x"], {})["x"] == {"failed": "no library"}
    script.write_text(
        "import json; print('onednn_verbose,v1,info,cpu,isa:Intel AVX2');"
        "print(json.dumps({'x': {'gops': 2.0, 'kernels': ['a']}}))"
    )
    found = hold_check.run_probe(["x"], {})["x"]
    assert found == {"gops": 2.0, "kernels": ["a", "oneDNN: Intel AVX2"]}


def test_held_measurement_runs_in_a_fresh_process(engine, tiny_file, capfd, tmp_path):
    if "avx2" not in library.available_sets():
        pytest.skip(f"no avx2 here, only {', '.join(library.available_sets())}")
    out = tmp_path / "held.json"
    argv = ["--import", str(tiny_file), "bench", "latency", "--model", tiny_model.NAME]
    argv += ["--untrained", "--threads", "1", "--seconds", "0", "--methods", "cod-tdq"]
    assert main([*argv, "--hold", "avx2", "--out", str(out)]) == 0
    said = capfd.readouterr().out
    assert "held to avx2" in said and "native (avx2)" in said
    document = json.loads(out.read_text())
    assert document["machine"]["native_instruction_set"] == "avx2"
    assert document["machine"]["fp32_switches"][hold.ATEN] == "avx2"
    assert [row["held"] for row in document["rows"]] == ["avx2", "avx2"]
    assert document["held"]["set"] == "avx2" and document["held"]["families"]["torch"]["held"]
    assert library.instruction_set() == library.available_sets()[0]  # this process is as it was


def test_a_fresh_process_that_fails_says_so_in_one_line(tiny_file, capfd, monkeypatch):
    monkeypatch.setenv(OTHER_FILE, "nowhere.so")
    argv = ["--import", str(tiny_file), "bench", "latency", "--model", tiny_model.NAME]
    assert main([*argv, "--untrained", "--hold", "avx2"]) == 2
    err = capfd.readouterr().err
    assert len(err.splitlines()) == 1 and "nowhere.so: no such file" in err
