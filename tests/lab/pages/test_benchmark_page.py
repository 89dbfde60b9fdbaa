"""The page of a benchmark run, read and used in a browser."""

import json

import pytest

from codtdq.cli.main import main
from codtdq.errors import DataError
from codtdq.lab.pages import benchmark_page
from codtdq.lab.tables import read_results

DATASETS = ("camosynth/test-easy", "camosynth/test-small")
# method: title, S on the two data sets, ranges, nominal bits
METHODS = {
    "fp32": ("FP32", (0.85, 0.79), "-", 32),
    "w4a4": ("W4A4 (naive)", (0.57, 0.45), "dynamic", 4),
    "repq-vit": ("RepQ-ViT", (0.80, 0.70), "static", 4),
    "cod-tdq-guarded": ("COD-TDQ (guarded)", (0.83, 0.77), "dynamic", 4),
}
IMAGES = 5


def rows(model="cfrn-small"):
    for method, (title, means, ranges, bits) in METHODS.items():
        for dataset, mean in zip(DATASETS, means):
            s = [round(mean + 0.01 * (i - 2), 4) for i in range(IMAGES)]
            yield {
                "model": model,
                "method": method,
                "dataset": dataset,
                "seed": 0,
                "stress": None,
                "budget": None,
                "limit": IMAGES,
                "status": "ok",
                "error": None,
                "count": IMAGES,
                "metrics": {
                    "S": mean,
                    "wF": mean - 0.1,
                    "E_mean": mean,
                    "F_mean": mean,
                    "MAE": 1 - mean,
                },
                "per_image": {"name": [f"{dataset}-{i}" for i in range(IMAGES)], "S": s},
                "bits": {"weight": bits + 0.1, "activation": bits + 0.2},
                "info": {
                    "title": title,
                    "ranges": ranges,
                    "granularity": "per tensor",
                    "calibration_images": 0,
                    "gradients": False,
                    "reconstructs": False,
                    "act_bits": str(bits),
                    "weight_bits": str(bits),
                    "source": "<b>x</b>",
                },
                "calibration": None,
                "diagnosis": {"sqnr_db": 20.0},
                "hashes": {},
                "environment": {"torch": "2", "cpu": "a CPU"},
                "started": "2026-01-01T00:00:00+00:00",
            }


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    failed = {
        "model": "escnet-small",
        "method": "w4a4",
        "dataset": DATASETS[0],
        "seed": 1,
        "stress": None,
        "budget": None,
        "limit": IMAGES,
        "status": "error",
        "error": "no <luck>",
    }
    lines = [*rows(), *rows("escnet-small"), failed]
    path = folder / "results.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.fixture
def page(file, browser, tmp_path):
    out = tmp_path / "report.html"
    assert main(["report", str(file), "--out", str(out)]) == 0
    browser.open(out)
    yield browser
    assert browser.errors == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "data"}


def column(page, index, table="score-table"):
    return page.run(
        f"[...document.querySelectorAll('#{table} tbody tr')].map(r => r.cells[{index}].innerText)"
    )


def test_scores_are_means_over_data_sets_best_first(page):
    assert column(page, 0) == ["FP32", "COD-TDQ (guarded)", "RepQ-ViT", "W4A4 (naive)"]
    assert column(page, 1) == ["0.820", "0.800", "0.750", "0.510"]
    assert page.texts("#score-table td.best") == ["0.800", "0.830", "0.770"]  # of W4A4 only
    page.click("#score-table th[data-key=weight] button")
    assert column(page, 0)[0] == "FP32"
    page.click("#score-table th[data-key=weight] button")
    assert column(page, 0)[-1] == "FP32"


def test_metric_and_filters_drive_table_and_bars(page):
    page.select("#metric", "MAE")
    assert column(page, 1) == ["0.180", "0.200", "0.250", "0.490"]  # lower is better: ascending
    page.select("#score-ranges", "static")
    assert column(page, 0) == ["RepQ-ViT"] and page.text("#score-count") == "1 of 4 methods"
    assert page.texts("#bars .name") == ["RepQ-ViT"] and page.texts("#bars .value") == ["0.200"]
    page.select("#score-ranges", "")
    page.type("#score-filter", "guarded")
    assert column(page, 0) == ["COD-TDQ (guarded)"]


def test_bars_follow_the_data_set(page):
    assert page.texts("#bars .value") == ["0.850", "0.830", "0.800", "0.570"]
    page.select("#split", "1")
    assert page.texts("#bars .value") == ["0.790", "0.770", "0.700", "0.450"]
    assert page.run("document.querySelector('#bars .fill.ours').style.width") == "77%"


def test_scatter_compares_each_image_with_fp32(page):
    assert page.run("document.querySelectorAll('#scatter circle').length") == 2 * IMAGES
    assert page.text("#scatter-reading") == "10 of 10 images score lower than under FP32."
    first = page.run("document.querySelector('#scatter circle title').textContent")
    assert first == "camosynth/test-easy-0: FP32 0.830, W4A4 (naive) 0.550"
    page.select("#scatter-method", "cod-tdq-guarded")
    assert "guarded" in page.run("document.querySelector('#scatter circle title').textContent")


def test_models_are_switched(page):
    page.type("#score-filter", "naive")
    page.click("#scope button:nth-of-type(2)")
    assert "escnet-small" in page.text("#scope button[aria-pressed=true]")
    assert column(page, 0) == ["W4A4 (naive)"]  # the filter stays


def test_facts_failures_and_provenance_are_shown(page, file):
    assert column(page, 3, "method-table") == ["-", "dynamic", "static", "dynamic"]
    assert "no <luck>" in page.text("#failures")
    provenance = page.text("#provenance")
    assert f"codtdq report {file}" in provenance and "a CPU" in provenance


def test_a_phone_scrolls_down_only(file, browser, tmp_path):
    out = tmp_path / "r.html"
    out.write_text(benchmark_page(read_results([file]), "codtdq report"), encoding="utf-8")
    browser.open(out, width=390, height=844)
    assert browser.run("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]


def test_command_says_what_it_wrote_and_what_is_wrong(file, tmp_path, capsys):
    out = tmp_path / "r.html"
    assert main(["report", str(file.parent), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cells"] == 17 and told["bytes"] == out.stat().st_size
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "x.html")]) == 2
    assert "no results.jsonl in this folder" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
    with pytest.raises(DataError):
        read_results([tmp_path / "none"])


def test_the_legend_of_the_scatter_shows_its_dots(page):
    look = """[...document.querySelectorAll('#%s circle')].map(c => c.getAttribute('fill'))"""
    drawn = set(page.run(look % "scatter"))
    assert page.run(look % "scatter-legend") == sorted(drawn) and len(drawn) == len(DATASETS)
    assert page.run("document.querySelectorAll('#scatter-legend line').length") == 0
