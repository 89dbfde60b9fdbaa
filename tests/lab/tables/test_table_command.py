"""`codtdq table`: styles, files and wrong input."""

import csv
import io
import json
import re
import subprocess
import sys

import fixture_results as fixture
import pytest

from codtdq.lab.tables import build_tables, read_results, render_tables


@pytest.fixture
def results(tmp_path):
    return fixture.write(tmp_path / "results.jsonl", fixture.benchmark())


def test_paper_style_is_aligned(run, results):
    code, out, _ = run(results.parent, "--table", "main", "--width", 400)  # a folder will do
    assert code == 0 and "*" in out and "_" in out
    block = out.split("=\n")[1].splitlines()
    bars = {tuple(m.start() for m in re.finditer(r" \| ", line)) for line in block if " | " in line}
    assert len(bars) == 1 and len(next(iter(bars))) == 3  # method | settings | two data sets


def test_paper_style_breaks_into_panels(run, results):
    wide = run(results, "--table", "main", "--width", 400)[1]
    narrow = run(results, "--table", "main", "--width", 90)[1]
    assert narrow.count("RepQ-ViT") > wide.count("RepQ-ViT")
    assert max(map(len, narrow.splitlines())) <= 90


def test_terminal_codes(results):
    tables = build_tables(read_results([results]), "main")
    text = render_tables(tables, "paper", ansi=True)
    assert "\033[1m.789\033[0m" in text and "\033[4m.759\033[0m" in text
    plain = re.sub(r"\033\[\d+m", "", text)
    assert not re.search(r"[*_]\.\d", plain)
    assert "*.789*" in render_tables(tables, "paper") and "_.759_" in render_tables(tables, "paper")


def test_markdown_has_equal_columns(run, results):
    code, out, _ = run(results, "--style", "markdown")
    assert code == 0 and "**.789**" in out and "<u>.759</u>" in out and "failed<sup>1</sup>" in out
    for block in out.split("### ")[1:]:
        counts = {
            len(re.findall(r"(?<!\\)\|", line))
            for line in block.splitlines()
            if line.startswith("|")
        }
        assert len(counts) == 1
    assert "camosynth/test-easy E\\_mean↑" in out


def test_latex_is_balanced_and_escaped(run, tmp_path):
    odd = fixture.row(method="my-own")
    odd["info"]["title"] = "[A&B]_50% #1 {x} ~^\\"
    rows = [odd, fixture.row(), fixture.row(method="cod-tdq"), fixture.row(method="dstg-only")]
    rows.append(fixture.row(method="ptq4vit", error="KeyError: 'a_b' & $5"))
    code, out, _ = run(fixture.write(tmp_path / "r.jsonl", rows), "--style", "latex")
    assert code == 0
    for name in ("table*", "tabular", "minipage"):
        assert out.count(rf"\begin{{{name}}}") == out.count(rf"\end{{{name}}}") > 0
    bare = re.sub(r"\\[{}]", "", out)
    assert bare.count("{") == bare.count("}")
    assert r"{[}A\&B{]}\_50\% \#1 \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{}" in out
    assert r"a\_b' \& \$5" in out and r"\textbf{" in out and r"\underline{" in out
    assert "$-$." in out  # a true minus before a negative difference
    for table in out.split(r"\toprule")[1:]:
        body = table.split(r"\bottomrule")[0]
        widths = set()
        for line in body.splitlines():
            if line.endswith(r"\\"):
                spans = [int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
                widths.add(len(re.findall(r"(?<!\\)&", line)) + 1 + sum(spans))
        assert len(widths) == 1
    assert not re.search(r"[±↑↓Δ]", out)


def test_csv_holds_full_precision(run, results):
    rows = list(csv.DictReader(io.StringIO(run(results, "--style", "csv")[1])))
    cell = fixture.row("cfrn-small", "cod-tdq")
    (found,) = [
        r
        for r in rows
        if (r["model"], r["method"], r["dataset"], r["stress"])
        == ("cfrn-small", "cod-tdq", "camosynth/test-easy", "")
    ]
    assert float(found["S"]) == cell["metrics"]["S"] and found["S_std"] == ""
    assert found["evidence"] == "paper text" and found["activation_bits"] == "4.51"
    failed = [r for r in rows if r["status"] == "failed"]
    assert {r["method"] for r in failed} == {"fima-q"} and "not finite" in failed[0]["error"]
    code, _, err = run(results, "--style", "csv", "--table", "all")
    assert code == 2 and "one kind of table" in err


def test_json_and_several_metrics(run, results):
    data = json.loads(run(results, "--json", "--table", "stats", "--metric", "S,MAE")[1])
    assert {r["metric"] for t in data for r in t["records"]} == {"S", "MAE"}
    mae = {r["method"]: r for r in data[1]["records"]}
    assert mae["cod-tdq"]["difference"] < 0 and mae["cod-tdq"]["won"] > 0.5
    kinds = {t["table"] for t in json.loads(run(results, "--json")[1])}
    assert kinds == {"main", "ablation", "bits", "gain", "stats"}


def test_out_writes_a_whole_file(run, results, tmp_path):
    out = tmp_path / "new" / "main.md"
    code, said, _ = run(results, "--table", "main", "--style", "markdown", "--out", out)
    assert code == 0 and f"3 tables written to {out}" in said
    assert out.read_text() == run(results, "--table", "main", "--style", "markdown")[1]
    assert [p.name for p in out.parent.iterdir()] == ["main.md"]


def test_several_files_are_one_benchmark(run, tmp_path):
    a = fixture.write(tmp_path / "a.jsonl", [fixture.row()])
    b = fixture.write(tmp_path / "b.jsonl", [fixture.row(method="cod-tdq")])
    code, out, _ = run(a, b, "--table", "gain")
    assert code == 0 and "COD-TDQ" in out


def test_published_numbers_stand_beside_or_are_refused(run, results, tmp_path):
    path = fixture.write(tmp_path / "paper.jsonl", fixture.paper_rows())
    code, out, _ = run(path, "--with-published", "--table", "main")
    assert code == 0 and re.search(r"Naive W4A4.*\(\.418\)", out) and "F_max↑" in out
    code, out, err = run(results, "--with-published")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert "cfrn-small, escnet-small" in err and "camosynth/test-easy" in err and "NC4K" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ("", "empty; expected one JSON object"),
        ("\n \n", "empty"),
        ('{"model": 1\n', r":1: not JSON"),
        ("[1]\n", ":1: a JSON list"),
        ('{"status": "maybe"}\n', "status is 'maybe'; accepted: ok, error"),
        ('{"status": "ok", "model": "m"}\n', "no method, dataset, seed"),
        (json.dumps(fixture.row(metrics={"S": "high"})), "metrics.S is 'high'; expected a number"),
        (json.dumps(fixture.row(seed="0")), "seed is '0'; expected int"),
        (json.dumps(fixture.row()) + "\n{", ":2: not JSON"),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, text, message):
    path = tmp_path / "bad.jsonl"
    if text is not None:
        path.write_text(text)
    code, out, err = run(path)
    assert code == 2 and out == "" and err.count("\n") == 1
    assert re.search(message, err) and "bad.jsonl" in err


def test_other_bad_input(run, tmp_path, results):
    code, _, err = run(tmp_path / "nothing")
    assert code == 2 and "no such file" in err
    (tmp_path / "folder").mkdir()
    assert "no results.jsonl in this folder" in run(tmp_path / "folder")[2]
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "not a text file" in run(tmp_path / "binary")[2]
    assert "--digits is 0" in run(results, "--digits", 0)[2]
    assert "metric Q is not in the results" in run(results, "--metric", "Q")[2]


def test_the_command_offers_every_kind_and_style():
    from codtdq.lab.commands import table
    from codtdq.lab.tables import KINDS, STYLES

    assert set(table._KINDS) == {"all", *KINDS} and table._STYLES == STYLES


def test_needs_no_torch(results):
    code = (
        "import sys; from codtdq.lab.tables import *; "
        f"render_tables(build_tables(read_results([{str(results)!r}]))); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
