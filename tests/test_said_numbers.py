"""Numbers in sentences of the pages: each sentence is made from the rows and must stand there.

Tables are drawn from results/ by scripts; a number in running text is held here.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from score_rows import Scores, difference, rows  # noqa: E402  a file of benchmarks/

CFRN, ESCNET, OUTLIERS = "cfrn-small", "escnet-small", "outliers"
PUBLISHED = (
    *("fima-q", "igq-vit", "orq-vit", "token-bitwidth", "repq-vit", "ptq4vit", "noisyquant"),
    *("arcquant", "smoothquant", "ahcptq", "ptq4sam", "pq-sam", "quartz"),
)


def benchmark():
    """Sentences of docs/benchmark.md."""
    scores = Scores(rows("camosynth/results.jsonl"))

    def s(method, model=CFRN):
        return scores.mean(method, model, digits=3)

    def behind(method, model):
        return f"{np.mean(scores.joined('arcquant', model) - scores.joined(method, model)):.3f}"

    def bits(method, model=CFRN):
        found = [
            row["bits"]["activation"]
            for row in rows("camosynth/results.jsonl")
            if (row["method"], row["model"]) == (method, model)
        ]
        return f"{found[0]:.1f}"

    lost = float(scores.mean("fp32", ESCNET)) - float(scores.mean("w4a4", ESCNET))
    all_thirteen = sorted(s(method) for method in PUBLISHED)
    guarded = difference(*(scores.joined(m, CFRN) for m in ("cod-tdq-guarded", "arcquant")), 3)[0]
    mean, low, _, high = guarded.replace("(", "").replace(")", "").replace("+", "").split()
    kept = [
        f"{100 * np.mean(scores.joined('cod-tdq-plus', m)) / np.mean(scores.joined('fp32', m)):.1f}"
        for m in (CFRN, ESCNET)
    ]
    return [
        f"Naive W4A4 falls from {s('fp32')} to {s('w4a4')}.",
        f"Read as per channel, `cod-tdq` has {s('cod-tdq')}.",
        f"All thirteen published methods stay between {all_thirteen[0]} and {all_thirteen[-1]}.",
        f"Naive W4A4 loses only {lost:.3f}.",
        f"Here it is {behind('cod-tdq', CFRN)} behind ARCQuant on cfrn-small and "
        f"{behind('cod-tdq', ESCNET)} on escnet-small",
        f"is behind ARCQuant on cfrn-small ({mean}, 95 % interval [{low}, {high}])",
        f"at {bits('cod-tdq-guarded')} bits per activation against {bits('arcquant')} and "
        f"{bits('arcquant', ESCNET)}.",
        f"keeps {kept[0]} and {kept[1]} % of FP32 at {bits('cod-tdq-plus')} bits.",
        f"With the same rule `per-token` has {s('per-token')}",
        f"PTQ4ViT with plain squared error ({s('ptq4vit-mse')}) beats its gradient-weighted metric "
        f"({s('ptq4vit')})",
    ]


def claims():
    """Cells of the table of claims in docs/the-paper.md."""
    variants = Scores(rows("variants/results.jsonl"))
    all_methods = Scores(rows("camosynth/results.jsonl"))

    def short(text):
        return text.removeprefix("0")

    def s(method, model=CFRN, stress=None, scores=variants):
        return short(scores.mean(method, model, stress, 3))

    def both(method, stress=None):
        return f"{s(method, CFRN, stress)} / {s(method, ESCNET, stress)}"

    return [
        f"S {s('fp32')} to {s('w4a4')} (W4A8 {s('w4a8', scores=all_methods)}); "
        f"{s('fp32', ESCNET)} to {s('w4a4', ESCNET)}, with outliers to "
        f"{s('w4a4', ESCNET, OUTLIERS)} |",
        f"DSTG only {s('dstg-only')} against {s('w4a4')}; per tensor in the convolutions "
        f"{s('dstg-only-per-tensor-conv')} |",
        f"{s('dstg-only')} of {s('fp32')} plain, {s('dstg-only', CFRN, OUTLIERS)} with outliers; "
        f"only the per-tensor reading stays at {s('dstg-only-per-tensor-conv')} / "
        f"{s('dstg-only-per-tensor-conv', CFRN, OUTLIERS)}",
        f"with outliers {s('dcrp-only', ESCNET, OUTLIERS)} against naive "
        f"{s('w4a4', ESCNET, OUTLIERS)}, of {s('fp32', ESCNET, OUTLIERS)}; plain "
        f"{s('dcrp-only', ESCNET)} against {s('w4a4', ESCNET)} |",
        f"{s('dcrp-attn')} on cfrn-small, as naive |",
        f"naive {both('w4a4')}: C1 {both('c1-only')}, C2 {both('c2-only')}; with outliers "
        f"{both('w4a4', OUTLIERS)}: C1 {both('c1-only', OUTLIERS)}, C2 "
        f"{both('c2-only', OUTLIERS)} |",
        f"cod-tdq {s('cod-tdq')} on cfrn-small, ARCQuant {s('arcquant', scores=all_methods)}, "
        f"SmoothQuant {s('smoothquant', scores=all_methods)}",
        f"{s('cod-tdq', ESCNET)} of {s('fp32', ESCNET)}; bounds in Linear operators only "
        f"{s('cod-tdq-linear-dcrp', ESCNET)}, none {s('dstg-only', ESCNET)} |",
    ]


def limits():
    """Sentences of docs/limits.md about the network for photographs."""
    found = {row["method"]: row for row in rows("vit-cod/results.jsonl")}
    plus, plain = found["cod-tdq-plus"], found["cod-tdq-plus-no-spare"]
    kept = 100 * plus["metrics"]["S"] / found["fp32"]["metrics"]["S"]
    bits = plus["bits"]
    assert plus["distance"] < 0.01
    return [
        f"keeps {kept:.1f} % of its S with **{bits['weight']:.1f} bits per weight and "
        f"{bits['activation']:.1f} per activation**",
        f"bring the mean distance from {plain['distance']:.3f} to below 0.01",
    ]


@pytest.mark.parametrize(
    ("page", "sentences"), [("benchmark", benchmark), ("the-paper", claims), ("limits", limits)]
)
def test_a_sentence_says_what_the_rows_say(page, sentences):
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split())
    missing = [sentence for sentence in sentences() if sentence not in text]
    assert missing == []
