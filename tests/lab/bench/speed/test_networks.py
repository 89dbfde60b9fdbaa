"""Whole networks: rows, competitors that cannot run, processes of their own, the paper's table."""

import pytest
import tiny_model

import codtdq
from codtdq.engine.cpu import library
from codtdq.errors import CodtdqError, ConfigError, UnsupportedError
from codtdq.lab.bench.speed import competitors, fresh_process
from codtdq.lab.bench.speed.competitors import network
from codtdq.lab.bench.speed.deployment import overheads, run_deployment
from codtdq.lab.bench.speed.latency import coverage, run_latency
from codtdq.lab.bench.speed.machine import notes
from codtdq.lab.bench.speed.subjects import prepared


def test_rows_hold_times_and_ratios_of_the_same_rounds(tiny):
    result = run_latency(tiny, batches=[1, 3], compare=["channels-last"], seconds=0.05)
    assert [(row["candidate"], row["batch"]) for row in result["rows"]] == [
        (name, batch) for batch in (1, 3) for name in ("fp32", "w4a4", "cod-tdq", "channels-last")
    ]
    for row in result["rows"]:
        assert row["ms_per_image"] * row["batch"] == pytest.approx(row["wall_ms"]["median"])
        assert row["images_per_second"] * row["ms_per_image"] == pytest.approx(1000)
    fp32, _, ours, other = result["rows"][:4]
    assert fp32["speedup"] == {"median": 1.0, "q1": 1.0, "q3": 1.0} and fp32["execution"] == "torch"
    assert ours["execution"].startswith("native")
    ratio = fp32["wall_ms"]["median"] / ours["wall_ms"]["median"]
    assert ours["speedup"]["median"] == pytest.approx(ratio)
    assert ours["precision"] == "W4A4" and 0.01 < ours["difference"] < 0.5
    assert ours["build_seconds"] > 0 and "difference" not in fp32
    assert (
        other["precision"] == "f32"
        and other["difference"] < 1e-5
        and "channels_last" in other["execution"]
    )
    assert fp32["weight_bytes"] == tiny.members["fp32"].path.stat().st_size > 4 * 929
    assert (
        ours["weight_bytes"] == tiny.members["cod-tdq"].bytes
        and other["weight_bytes"] == fp32["weight_bytes"]
    )
    cover = coverage(tiny)["cod-tdq"]
    assert cover["native_operators"] == cover["quantized_operators"] == 2
    assert cover["macs"] == 32 * 32 * (32 * 27 + 32)


def test_a_network_that_cannot_be_exported_is_skipped_with_the_reason(tiny, monkeypatch):
    tried = []

    def fail(*args):
        tried.append(args)
        raise RuntimeError("no such operator: deform\nand much more")

    monkeypatch.setattr(network, "export_fp32", fail)
    monkeypatch.setattr(competitors, "check", lambda names: None)
    rows = run_latency(tiny, compare=["onnxruntime-int8", "channels-last"], seconds=0)["rows"]
    skipped = [row for row in rows if "skipped" in row]
    assert [row["candidate"] for row in skipped] == ["onnxruntime-int8"]
    assert "no such operator: deform" in skipped[0]["skipped"] and "\n" not in skipped[0]["skipped"]
    with competitors.Bench(tiny.baseline, tiny.images(1)) as bench:
        tried.clear()
        assert bench.build("onnxruntime", 1).run is bench.build("openvino", 1).run is None
        assert len(tried) == 1  # an export that fails is not tried again


def test_a_fresh_process_loads_and_predicts(tiny, tiny_file):
    del tiny.members["w4a4"]
    rows = fresh_process.run_fresh(
        tiny, batches=[2], repeats=1, imports=[str(tiny_file)], programs=True
    )
    assert [row["candidate"] for row in rows] == ["fp32", "cod-tdq", "cod-tdq, program file"]
    for row in rows:
        assert row["runs"][0]["masks"] == 2
        assert row["peak_bytes"] >= row["import_bytes"]
        assert (row["import_bytes"] > 50e6) == ("program" not in row["candidate"])  # torch is more
        inside = row["import_seconds"] + row["load_seconds"] + row["predict_seconds"]
        assert row["first_mask_seconds"] > inside
        assert row["after_imports_seconds"] < row["first_mask_seconds"]
    assert rows[0]["peak_ratio"] == rows[0]["first_mask_speedup"] == 1.0


def test_networks_are_timed_at_the_size_that_is_asked_for(engine, monkeypatch):
    asked = []
    fake = dict.fromkeys(fresh_process.FIELDS, 1.0)
    monkeypatch.setattr(fresh_process, "run_child", lambda settings: asked.append(settings) or fake)
    with prepared(
        tiny_model.NAME, ["cod-tdq"], untrained=True, write_fp32=True, size=96
    ) as subjects:
        assert subjects.images(2).shape == (2, 3, 96, 96)
        assert run_latency(subjects, seconds=0)["input_size"] == 96
        assert coverage(subjects)["cod-tdq"]["macs"] == 96 * 96 * (32 * 27 + 32)
        fresh_process.run_fresh(subjects, repeats=1)
    assert [settings["size"] for settings in asked] == [96, 96]
    with (
        pytest.raises(ConfigError, match=r"size 97 x 97.* takes multiples of 32"),
        prepared(tiny_model.NAME, ["cod-tdq"], untrained=True, size=97),
    ):
        pass


def test_a_process_that_fails_says_why(tiny, tmp_path, monkeypatch):
    child = tmp_path / "child.py"
    child.write_text("import sys, json; sys.exit(json.loads(sys.argv[1])['architecture'])")
    monkeypatch.setattr(fresh_process, "CHILD", child)
    with pytest.raises(CodtdqError, match=f"failed: {tiny_model.NAME}"):
        fresh_process.run_fresh(tiny, repeats=1)


def test_process_rows_are_medians_and_ratios(tiny, monkeypatch):
    seconds = iter([8.0, 2.0, 4.0, 10.0, 5.0, 4.0, 9.0, 3.0, 1.0])

    def child(settings):
        value = next(seconds)
        return {**dict.fromkeys(fresh_process.FIELDS, value), "load_seconds": 1.0}

    monkeypatch.setattr(fresh_process, "run_child", child)
    rows = fresh_process.run_fresh(tiny, repeats=3)
    assert [row["first_mask_seconds"] for row in rows] == [9.0, 3.0, 4.0]
    assert [row["first_mask_speedup"] for row in rows] == [1.0, 3.0, 2.25]
    assert rows[1]["after_imports_seconds"] == 4.0


def test_overheads_by_hand():
    found = overheads(
        {
            "w4a4": [100.0, 100.0, 200.0],
            "dstg-only": [110.0, 120.0, 220.0],
            "cod-tdq": [120.0, 150.0, 220.0],
        }
    )
    assert found["dstg"] == pytest.approx({"median": 0.20, "q1": 0.10, "q3": 0.15})
    assert found["dcrp"]["median"] == pytest.approx(0.25)
    assert found["both"]["median"] == pytest.approx(0.50)


def test_the_deployment_table_is_complete(engine, monkeypatch):
    fake = dict.fromkeys(fresh_process.FIELDS, 1e6)
    monkeypatch.setattr(fresh_process, "run_child", lambda settings: fake)
    (result,) = run_deployment([tiny_model.NAME], batch=2, seconds=0, repeats=1, untrained=True)
    assert [row["candidate"] for row in result["rows"]] == ["fp32", "w4a4", "dstg-only", "cod-tdq"]
    fp32, *_, ours = result["rows"]
    assert fp32["weight_bytes"] > 4 * 929 and ours["weight_bytes"] == result["storage"]["total"]
    assert result["coverage"]["of_macs"] == 1.0 and set(result["overhead"]) >= {"dstg", "dcrp"}


def test_rivals_are_timed_by_name_and_say_how_they_run(engine, monkeypatch):
    fake = dict.fromkeys(fresh_process.FIELDS, 1e6)
    asked = []
    monkeypatch.setattr(fresh_process, "run_child", lambda settings: asked.append(settings) or fake)
    (result,) = run_deployment(
        [tiny_model.NAME], rivals=["repq-vit"], batch=1, seconds=0, repeats=1, untrained=True
    )
    rows = {row["candidate"]: row for row in result["rows"]}
    assert list(rows) == ["fp32", "w4a4", "repq-vit", "dstg-only", "cod-tdq"]
    assert rows["repq-vit"]["execution"] == "simulated" and rows["repq-vit"]["weight_bytes"] > 0
    assert rows["w4a4"]["execution"].startswith("native")
    backends = [(s["path"].rpartition("/")[2], s["backend"]) for s in asked if s["packed"]]
    assert ("repq-vit", "reference") in backends and ("w4a4", "cpu") in backends


def test_unknown_methods_fail_before_anything_is_built(engine):
    with pytest.raises(ConfigError, match="unknown method"):
        with prepared("cfrn", ["cod-tdqq"], untrained=True):
            pass
    with pytest.raises(ConfigError, match="--untrained"):
        with prepared("cfrn", ["cod-tdq"]):
            pass


def test_a_quantized_model_that_is_there_is_timed_beside_the_methods(engine, tmp_path):
    with prepared(tiny_model.NAME, ["cod-tdq"], untrained=True) as subjects:
        own = codtdq.save(subjects.members["cod-tdq"].model, tmp_path / "own")
    with prepared(tiny_model.NAME, ["w4a4"], quantized=[str(own)], untrained=True) as subjects:
        rows = run_latency(subjects, seconds=0)["rows"]
    assert [row["candidate"] for row in rows] == ["fp32", "w4a4", "own"]
    assert rows[-1]["weight_bytes"] == sum(file.stat().st_size for file in own.iterdir())
    assert rows[-1]["execution"] == rows[1]["execution"]


def test_quantized_models_of_other_networks_are_refused(engine, tmp_path):
    with pytest.raises(ConfigError, match="vit-cod-w4a4 is a vit-cod; accepted"):
        with prepared(tiny_model.NAME, [], quantized=["vit-cod-w4a4"], untrained=True):
            pass
    with prepared(tiny_model.NAME, ["cod-tdq"], untrained=True) as subjects:
        own = codtdq.save(subjects.members["cod-tdq"].model, tmp_path / "cod-tdq")
    with pytest.raises(ConfigError, match="another row has the name cod-tdq"):
        with prepared(tiny_model.NAME, [], quantized=[str(own)], untrained=True):
            pass


def test_without_the_engine_nothing_is_measured():
    with library.disabled(), pytest.raises(UnsupportedError, match="cannot run: turned off"):
        with prepared(tiny_model.NAME, [], untrained=True):
            pass


def test_a_narrower_instruction_set_is_noted(engine, monkeypatch):
    best = library.available_sets()[0]
    monkeypatch.setattr(library, "instruction_set", lambda: best)
    assert notes() == []
    monkeypatch.setattr(library, "instruction_set", lambda: "narrow")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    assert "ATEN_CPU_CAPABILITY=avx2" in notes()[0]
