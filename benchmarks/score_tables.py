"""Write the tables of scores in README.md and docs/ from the rows in results/.

python benchmarks/score_tables.py            rewrite the pages
python benchmarks/score_tables.py --check    fail if a page and its rows differ

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`; NAME is a key of TABLES.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from budget_tables import budget_cost, budgets
from device_tables import roofline, triton
from document_tables import document_table
from page_blocks import BLOCK, main, table
from readme_table import readme
from score_rows import ROOT, Row, Scores, difference, rows

from codtdq.lab.tables.catalogue import ABLATION, GROUPS
from codtdq.methods.registry import method_info

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SMALL = ("cfrn-small", "escnet-small")
CASES = [(model, stress) for model in SMALL for stress in (None, "outliers")]
CASE_HEAD = ["cfrn-small", "with outliers", "escnet-small", "with outliers"]
EVIDENCE = {"re-implemented from the abstract": " (a)", "second-hand description": " (s)"}
VIT_COD_PLAIN = "cod-tdq-plus-no-spare"
VIT_COD_FIRST = ("fp32", "w4a4", "dstg-only", "cod-tdq", "cod-tdq-guarded")


def all_methods() -> str:
    """S of every method on both small networks, in the groups of the paper's table."""
    scores = Scores(rows("camosynth/results.jsonl"))
    listed = {name for names in GROUPS.values() for name in names}
    ablations = [name for name in ABLATION if name not in listed]
    others = [name for name in scores.info if name not in listed and name not in ablations]
    groups = {**GROUPS, "Ablations of the paper": ablations, "Variants and controls": others}
    head = ["method", "ranges", "granularity", "A bits", "W bits", *SMALL]
    lines = []
    for group, members in groups.items():
        present = [name for name in members if name in scores.info]
        if group != "Full precision and naive quantization":
            present.sort(key=lambda name: -np.mean(scores.seeds(name, SMALL[0])))
        lines.append([f"**{group}**", *[""] * (len(head) - 1)])
        for name in present:
            info = scores.info[name]["info"]
            title = scores.title(name) + EVIDENCE.get(info["evidence"], "")
            line = [title, info["ranges"], _granularity(scores.info[name]), *scores.bits(name)]
            lines.append([*line, *(scores.mean(name, model, digits=3) for model in SMALL)])
    return table(head, lines, text_columns=3)


def _granularity(row: Row) -> str:
    """As the method declares it; with the shared ranges that CFRN declares for convolutions."""
    modes = row["config"].get("act_modes", {})
    shared = modes.get("conv", "per_token_group") != modes.get("linear", "per_token_group")
    more = f"; CFRN's convolutions: {modes['conv'].removeprefix('per_')}" if shared else ""
    return row["info"]["granularity"] + more


def planted() -> str:
    """S with planted outlier channels beside S without, over the same images."""
    outliers = Scores(rows("camosynth-outliers/results.jsonl"))
    plain = Scores(rows("camosynth/results.jsonl"), limit=50)

    def cells(name: str) -> list[str]:
        found = []
        for model in SMALL:
            same = name  # the per-tensor reading is CFRN's; ESCNet has no shared ranges
            if model == SMALL[1] and not outliers.seeds(name, model, "outliers"):
                same = name.removesuffix("-per-tensor-conv")
            found += [plain.mean(same, model, digits=3)]
            found += [outliers.mean(same, model, "outliers", digits=3)]
        return found

    order = sorted(outliers.info, key=lambda name: -outliers.seeds(name, SMALL[0], "outliers")[0])
    order.sort(key=lambda name: name != "fp32")
    return table(["method", *CASE_HEAD], [[outliers.title(name), *cells(name)] for name in order])


def collapse() -> str:
    """SQNR and zeros of the inputs that lose most under the naive setting."""
    hidden = ("cod-tdq-guarded",)  # as dstg-everywhere, and the table is wide
    found = [row for row in rows("collapse/cfrn-small.jsonl") if row["method"] not in hidden]
    head = ["input", *(method_info(row["method"]).title for row in found)]
    lines = [
        [f"`{_short(name)}`", *("{:.1f} / {:.3f}".format(*row["worst"][name]) for row in found)]
        for name in found[0]["worst"]
    ]
    count = found[0]["operators"]
    lines.append([f"mean of {count} inputs", *(f"{row['mean_sqnr_db']:.1f}" for row in found)])
    return table(head, lines)


def _short(operator: str) -> str:
    return operator if len(operator) < 30 else "..." + operator[-22:]


def plus_scores() -> str:
    """All images, three seeds."""
    scores = Scores(rows("plus/results.jsonl"))
    lines = []
    for name in ("fp32", "cod-tdq-plus", "arcquant", "smoothquant", "cod-tdq-guarded"):
        line = [scores.title(name), *scores.bits(name)]
        lines.append([*line, *(scores.mean(name, *case) for case in CASES)])
        if name == "cod-tdq-plus":
            shares, spans = [], []
            for case in CASES:
                seeds, best = scores.seeds(name, *case), scores.seeds("fp32", *case)[0]
                shares.append(f"{np.mean(seeds) / best:.1%}")
                spans.append(f"{min(seeds):.4f} to {max(seeds):.4f}")
            lines += [["its three seeds", "", "", *spans], ["its share of FP32", "", "", *shares]]
    return table(["setting", "A bits", "W bits", *CASE_HEAD], lines)


def plus_paired() -> str:
    """Differences of cod-tdq-plus to the others over the same images."""
    scores = Scores(rows("plus/results.jsonl"))
    rivals = ("fp32", "arcquant", "smoothquant", "cod-tdq-guarded", "dstg-only", "per-token-all")
    lines = [
        [
            scores.title(rival),
            *(
                difference(scores.joined("cod-tdq-plus", *case), scores.joined(rival, *case))[0]
                for case in CASES
            ),
        ]
        for rival in rivals
    ]
    return table(["cod-tdq-plus against", *CASE_HEAD], lines)


def plus_engine() -> str:
    """cod-tdq-plus before whole multipliers, with them, and on the engine if it was run there."""
    files = {
        "simulated, E4M3 scales": "plus/former.jsonl",
        "simulated": "plus/results.jsonl",
        "native engine": "plus/engine.jsonl",
    }
    found = {
        title: Scores(rows(file))
        for title, file in files.items()
        if (ROOT / "results" / file).exists()
    }
    lines = []
    for title, scores in found.items():
        cells = []
        for model in SMALL:
            seeds = scores.seeds("cod-tdq-plus", model)
            spread = f" ({min(seeds):.4f} to {max(seeds):.4f})" if seeds else ""
            cells.append(scores.mean("cod-tdq-plus", model) + spread)
        lines.append([title, *cells])
    *others, last = found
    for other in others:
        pairs = [_same_seeds(found[last], found[other], "cod-tdq-plus", model) for model in SMALL]
        lines.append([f"{last} - {other}", *(difference(*pair)[0] for pair in pairs)])
    return table(["S of cod-tdq-plus", *SMALL], lines)


def _same_seeds(first: Scores, second: Scores, method: str, model: str) -> list[np.ndarray]:
    """S of every image by both, mean of the seeds that both have."""
    found = [scores.images.get((method, model, None), {}) for scores in (first, second)]
    seeds = sorted(found[0].keys() & found[1].keys())
    if not seeds:
        return [np.empty(0), np.empty(0)]
    return [np.mean([np.concatenate(each[seed]) for seed in seeds], 0) for each in found]


def plus_standing() -> str:
    """Over how many W4A4 methods cod-tdq-plus is certainly ahead, and which are undecided."""
    lines = []
    for folder, stress in (("camosynth", None), ("camosynth-outliers", "outliers")):
        scores = Scores(rows(f"{folder}/results.jsonl"))
        for model in SMALL:
            ours = scores.joined("cod-tdq-plus", model, stress)
            found: dict[bool, list[str]] = {True: [], False: []}
            for name in set(scores.info) - {"fp32", "w8a8", "w4a8", "cod-tdq-plus"}:
                theirs = scores.joined(name, model, stress)
                if len(theirs):
                    _, certain = difference(ours, theirs)
                    found[certain and ours.mean() > theirs.mean()].append(scores.title(name))
            case = f"{model}{', with outliers' if stress else ''}"
            count = len(found[True]) + len(found[False])
            rest = ", ".join(sorted(found[False])) or "-"
            lines.append([case, rest, str(len(ours)), f"{len(found[True])} of {count}"])
    return table(["network", "undecided", "images", "ahead of"], lines, text_columns=2)


def against_float(file: str, models: tuple[str, ...]) -> str:
    """S, the paired difference to FP32, and the mean distance per image; the closest first."""
    scores = Scores(rows(file))
    several = len(models) > 1
    head = ["setting"] + ([] if several else ["A bits", "W bits"])
    for model in models:
        head += [f"S {model}" if several else "S", "to FP32 (95 %)", "distance"]

    def away(name: str, model: str) -> float:
        return float(np.abs(scores.joined(name, model) - scores.joined("fp32", model)).mean())

    lines = []
    present = [name for name in scores.info if all(scores.seeds(name, m) for m in models)]
    for name in sorted(present, key=lambda name: away(name, models[0])):
        line = [scores.title(name)] + ([] if several else scores.bits(name))
        for model in models:
            line.append(scores.mean(name, model))
            if name == "fp32":
                line += ["", ""]
                continue
            gap, _ = difference(scores.joined(name, model), scores.joined("fp32", model), 3)
            line += [gap, f"{away(name, model):.4f}"]
        lines.append(line)
    return table(head, lines)


def ingredients() -> str:
    """Each ingredient of cod-tdq-plus left out, and added alone to cod-tdq."""
    found = [
        {
            row["setting"]: row
            for row in rows(f"plus/ingredients-{model}.jsonl")
            if not row["stress"]
        }
        for model in SMALL
    ]
    digits = {"difference": 4, "overlap": 3, "S": 4}
    lines = [
        [name, *(f"{each[name][key]:.{digits[key]}f}" for each in found for key in digits)]
        for name in found[0]
    ]
    return table(["setting", *(f"{key}, {model}" for model in SMALL for key in digits)], lines)


def variants() -> str:
    """The paper's settings; in brackets what cod-tdq gains over the row, where it is certain."""
    scores = Scores(rows("variants/results.jsonl"))
    lines = []
    for name in sorted(scores.info, key=["fp32", *ABLATION].index):
        cells = []
        for case in CASES:
            text, certain = difference(
                scores.joined("cod-tdq", *case), scores.joined(name, *case), 3
            )
            gain = f" ({text.split(' ')[0]})" if certain else ""
            cells.append(scores.mean(name, *case, digits=3) + gain)
        lines.append([f"**`{name}`**" if name == "cod-tdq" else f"`{name}`", *cells])
    return table(["setting", *CASE_HEAD], lines)


def bounds_gain() -> str:
    """What bounds add to token groups, and C1 or C2 to a shared range, with intervals."""
    scores = Scores(rows("variants/results.jsonl"))
    pairs = {
        "C1 and C2 on token groups": ("cod-tdq", "dstg-only"),
        "the same, in Linear operators only": ("cod-tdq-linear-dcrp", "dstg-only"),
        "C1 on one range per tensor": ("c1-only", "w4a4"),
        "C2 on one range per tensor": ("c2-only", "w4a4"),
    }
    lines = [
        [
            title,
            *(
                difference(scores.joined(one, *case), scores.joined(other, *case), 3)[0]
                for case in CASES
            ),
        ]
        for title, (one, other) in pairs.items()
    ]
    return table(["S gained by", *CASE_HEAD], lines)


def selection() -> str:
    """Which setting the paper's label-free score selects, and where the paper's own stands."""
    lines = []
    for model in SMALL:
        path = ROOT / "results" / "selection" / f"paper-{model}.json"
        found = json.loads(path.read_text(encoding="utf-8"))
        best, paper = found["chosen"], found["paper_setting"]
        chosen = ", ".join(
            "none" if best[key] is None else f"{best[key]:g}"
            for key in ("act_group_size", "tau", "zero_ratio")
        )
        place = f"rank {paper['rank']} of {paper['of']}, score {paper['score']:.4f}"
        selected = f"({chosen}), score {best['score']:.4f}"
        lines.append([model, selected, place, str(paper["lower_in_every_term"])])
    head = ["model", "selected (g, tau, zr)", "the paper's (32, 1, 0.2)"]
    return table([*head, "settings lower in every term"], lines, text_columns=3)


def demo() -> str:
    """What `codtdq demo` printed: S and MAE of every setting."""
    found = json.loads((ROOT / "results/demo/demo.json").read_text(encoding="utf-8"))["scores"]
    names = list(dict.fromkeys(name for scores in found.values() for name in scores))
    lines = []
    for name in sorted(names, key=list(found[SMALL[0]]).index):
        cells = []
        for scores in found.values():
            score = scores.get(name)
            cells.append(f"{score['S']:.3f} / {score['MAE']:.3f}" if score else "")
        lines.append([f"`{name}`", *cells])
    return table(["S / MAE", *found], lines)


def vit_cod() -> str:
    """The network for photographs: ours in the order of the text, other methods by S."""
    files = ("vit-cod/results.jsonl", "vit-cod/methods/results.jsonl")
    found = {row["method"]: row for name in files for row in rows(name)}
    last = [name for name in (VIT_COD_PLAIN, "cod-tdq-plus") if name in found]
    others = [name for name in found if name not in VIT_COD_FIRST and name not in last]
    others.sort(key=lambda name: -found[name]["metrics"]["S"])
    names = {
        "fp32": "FP32",
        "w4a4": "`w4a4` (naive)",
        VIT_COD_PLAIN: "`cod-tdq-plus`, no spare bits",
        "cod-tdq-plus": "`cod-tdq-plus` (`vit-cod-w4a4`)",
    }
    metrics = ["S", "wF", "E_mean", "F_max", "MAE"]
    titles = {name: f"{method_info(name).title} (`{name}`)" for name in others} | names
    return vit_cod_table(
        [found[name] for name in [*VIT_COD_FIRST, *others, *last]], titles, metrics
    )


def vit_cod_table(found: list[Row], titles: dict[str, str], metrics: list[str]) -> str:
    """Rows as they come: bits, scores and the distance to the float masks."""
    lines = []
    for row in found:
        away = row.get("distance")
        bits = row.get("bits") or {"weight": 32, "activation": 32}
        wide = " / ".join(f"{bits[kind]:.3g}" for kind in ("weight", "activation"))
        cells = (f"{row['metrics'][key]:.4f}" for key in metrics)
        title = titles.get(row["method"], f"`{row['method']}`")
        lines.append([title, wide, *cells, "-" if away is None else f"{away:.4f}"])
    return table(["setting", "bits W / A", *metrics, "distance"], lines)


def vit_cod_of(name: str) -> Callable[[], str]:
    """The table of one file of rows of vit-cod, in its order."""
    titles = {"fp32": "FP32", "w4a4": "`w4a4` (naive)"}
    return lambda: vit_cod_table(rows(f"vit-cod/{name}.jsonl"), titles, ["S", "wF", "MAE"])


def vit_cod_variants() -> str:
    """The paper's settings on photographs, with the paired difference of S to cod-tdq."""
    base = {row["method"]: row for row in rows("vit-cod/results.jsonl")}["cod-tdq"]
    lines = []
    for row in rows("vit-cod/variants.jsonl"):
        assert row["per_image"]["name"] == base["per_image"]["name"]
        pair = (np.array(each["per_image"]["S"]) for each in (row, base))
        bits = " / ".join(f"{row['bits'][kind]:.3g}" for kind in ("weight", "activation"))
        native = "simulated" if row["execution"].startswith("simulated") else "native"
        scores = [row["metrics"]["S"], row["metrics"]["wF"], row["metrics"]["MAE"], row["distance"]]
        cells = [f"{value:.4f}" for value in scores]
        lines.append([f"`{row['method']}`", native, bits, *cells, difference(*pair, 3)[0]])
    head = ["setting", "execution", "bits W / A", "S", "wF", "MAE", "distance"]
    return table([*head, "S against `cod-tdq` (95 %)"], lines, text_columns=2)


def vit_cod_tokens() -> str:
    """What the inputs of the encoder's layers look like, means over its blocks."""
    layers = json.loads((ROOT / "results/vit-cod/tokens.json").read_text())["layers"]
    head = ["input of", "D(X)", "heaviest token over the median one"]
    head += ["set to zero, one range", "set to zero, groups of 32 (DSTG)"]
    lines = []
    for kind in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
        each = [layer for name, layer in layers.items() if name.endswith(kind)]

        def mean(key: str, each: list[dict[str, float]] = each) -> float:
            return float(np.mean([layer[key] for layer in each]))

        line = [f"`{kind}`", f"{mean('disparity'):.0f}", f"{mean('peak_ratio'):.1f}"]
        lines.append([*line, f"{mean('zeroed_tensor'):.0%}", f"{mean('zeroed_groups'):.0%}"])
    return table(head, lines)


def simulation() -> str:
    """What the simulation in PyTorch differs by from the native engine, for whole networks."""
    found = json.loads((ROOT / "results/speed/simulated.json").read_text())
    rows = found["identity"]
    lines = [
        [
            f"`{row['model']}`",
            f"`{row['method']}`",
            f"{row['identical']} of {row['images']}",
            f"{row['mean_difference']:.3f}",
            f"{row['mean_iou']:.3f}",
            f"{row['min_iou']:.3f}",
        ]
        for row in rows
    ]
    head = ["network", "setting", "equal maps", "mean difference of p", "overlap", "least"]
    facts = f"{found['machine']['cpu']}, {rows[0]['against']}, torch {found['machine']['torch']}.\n"
    return f"{table(head, lines, text_columns=2)}\n{facts}"


def birefnet() -> str:
    """Size, time and memory of BiRefNet by side, as far as there are runs of `bench latency`."""
    files = (ROOT / "results/speed").glob("birefnet*.json")
    runs = [json.loads(path.read_text()) for path in files]
    runs.sort(key=lambda run: (-len(run["model"]), run["input_size"]))  # lite first
    if not runs:
        return "There is no run of these commands in `results/speed`.\n"
    threads = sorted({row["threads"] for run in runs for row in run["rows"]})
    head = ["network", "side", "setting", "MB"]
    head += [f"ms, {n} thread{'s' * (n > 1)}" for n in threads] + ["against FP32", "peak MB"]
    lines = []
    for run in runs:
        peaks = {row["candidate"]: row["peak_bytes"] for row in run.get("processes", ())}
        for name in dict.fromkeys(row["candidate"] for row in run["rows"]):
            rows = {row["threads"]: row for row in run["rows"] if row["candidate"] == name}
            first = rows[min(rows)]
            times = [f"{rows[n]['wall_ms']['median']:.0f}" if n in rows else "-" for n in threads]
            peak = f"{peaks[name] / 1e6:.0f}" if name in peaks else "-"
            size = [f"`{run['model']}`", str(run["input_size"]), f"`{name}`"]
            size += [f"{first['weight_bytes'] / 1e6:.1f}"]
            lines.append([*size, *times, f"{first['speedup']['median']:.2f}x", peak])
    machine = runs[0]["machine"]
    facts = (
        f"{machine['cpu']}, torch {machine['torch']}, ours {machine['native_instruction_set']}; "
        f"weights {', '.join(sorted({run['weights'] for run in runs}))}.\n"
    )
    return f"{table(head, lines, text_columns=3)}\n{facts}"


def score_throughput() -> str:
    """Images per second of `codtdq score` and PySODMetrics, and what one is faster by."""
    found = json.loads((ROOT / "results/score/throughput.json").read_text())
    (height, width), ours = found["size"], found["rows"][0]
    head = ["", "processes", "images/s", "`codtdq score` is faster by", "by processor time"]
    names = {"codtdq score": "`codtdq score`, start-up included"}
    lines = []
    for row in found["rows"]:
        line = [names.get(row["side"], row["side"]), str(row["processes"])]
        line += [f"{found['count'] / row['seconds']:.1f}"]
        for key in ("seconds", "cpu_seconds"):
            line += ["-" if row is ours else f"{row[key] / ours[key]:.1f}x"]
        lines.append(line)
    gap = max(
        abs(row["means"][key] - ours["means"][key])
        for row in found["rows"][1:]
        for key in row["means"]
    )
    facts = (
        f"{found['count']} maps of {width} x {height}; {found['machine']}, {found['cores']} cores, "
        f"load {found['load']} before the run; PySODMetrics {found['packages']['pysodmetrics']}. "
        f"Means differ by at most {gap:.0e}.\n"
    )
    return f"{table(head, lines)}\n{facts}"


def vit_cod_felt() -> str:
    """What the mask feels of rounding, by parts of the network."""
    felt = json.loads((ROOT / "results/vit-cod/felt.json").read_text())["felt"]
    parts = {"patch projection": ["encoder.patch_embed."]}
    for first in (0, 3, 6, 9):
        blocks = [f"encoder.blocks.{block}." for block in range(first, first + 3)]
        parts[f"blocks {first} to {first + 2}"] = blocks
    parts["decoder"] = ["decoder."]
    total = {
        key: sum(each[key] for each in felt.values()) for key in ("elements", "inputs", "weight")
    }
    lines = []
    for title, starts in parts.items():
        chosen = [each for name, each in felt.items() if name.startswith(tuple(starts))]
        shares = (sum(each[key] for each in chosen) / total[key] for key in total)
        lines.append([title, *(f"{share:.1%}" for share in shares)])
    return table(["part", "weights in it", "felt of its inputs", "felt of its weights"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "all-methods": all_methods,
    "planted-outliers": planted,
    "birefnet": birefnet,
    "collapse": collapse,
    "plus-scores": plus_scores,
    "plus-paired": plus_paired,
    "plus-engine": plus_engine,
    "plus-standing": plus_standing,
    "photographs": lambda: against_float("photographs/results.jsonl", SMALL),
    "segformer": lambda: against_float("segformer/results.jsonl", ("segformer-small",)),
    "ingredients": ingredients,
    "variants": variants,
    "bounds-gain": bounds_gain,
    "selection": selection,
    "simulation": simulation,
    "demo": demo,
    "readme": readme,
    "vit-cod-scores": vit_cod,
    "vit-cod-tokens": vit_cod_tokens,
    "vit-cod-felt": vit_cod_felt,
    "vit-cod-variants": vit_cod_variants,
    "vit-cod-camosynth": vit_cod_of("camosynth"),
    "budgets": budgets,
    "budget-cost": budget_cost,
    "runtime-cfrn": lambda: document_table(
        "runtime", "speed/deployment.json", "cfrn", with_published=True
    ),
    "weights-cfrn": lambda: document_table(
        "weights", "weights/cfrn.json", "cfrn", with_published=True
    ),
    "weights-cfrn-small": lambda: document_table(
        "weights", "weights/cfrn-small.json", "cfrn-small"
    ),
    "weights-escnet-small": lambda: document_table(
        "weights", "weights/escnet-small.json", "escnet-small"
    ),
    "roofline": roofline,
    "score-throughput": score_throughput,
    "triton": triton,
}


def made(name: str) -> str:
    """The block of a name, with empty lines around the table."""
    return f"\n{TABLES[name]()}\n"


def pages() -> list[Path]:
    """The pages that hold a table of scores; other scripts fill others."""
    return [
        path
        for path in PAGES
        if set(TABLES) & {found[1] for found in BLOCK.finditer(path.read_text(encoding="utf-8"))}
    ]


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], pages(), made))
