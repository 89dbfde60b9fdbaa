"""Results of the other benchmarks, by hand: round numbers, nothing measured."""

import json

MACHINE = {"cpu": "Imaginary CPU", "cores": 2}


def speed_row(candidate, ms, *, batch=4, threads=2, execution="native (avx2)", **more):
    return {
        "candidate": candidate,
        "batch": batch,
        "threads": threads,
        "ms_per_image": ms,
        "images_per_second": 1000 / ms,
        "speedup": {"median": 800 / ms, "q1": 1.0, "q3": 9.0},
        "execution": execution,
        **({} if candidate == "fp32" else {"build_seconds": 2.0}),
        **more,
    }


def split(packed=100_000_000, scales=400_000, metadata=100_000):
    return {
        "packed_weights": packed,
        "weight_scales": scales,
        "metadata": metadata,
        "overhead": (scales + metadata) / packed,
        "fp32": 8 * packed,
        "total": packed + scales + metadata,
    }


def deployment(model="cfrn"):
    """What `bench deployment --methods repq-vit --out` writes."""
    rows = [
        speed_row("fp32", 800.0, execution="torch", weight_bytes=775e6, peak_bytes=1.9e9),
        speed_row("w4a4", 400.0, weight_bytes=101.5e6, peak_bytes=9.0e8),
        speed_row("repq-vit", 1000.0, execution="simulated", weight_bytes=102e6, peak_bytes=2.5e9),
        speed_row("dstg-only", 399.0, weight_bytes=101.4e6, peak_bytes=9.5e8),
        speed_row("cod-tdq", 390.0, weight_bytes=101.3e6, peak_bytes=9.3e8),
    ]
    part = {
        "model": model,
        "weights": "random (untrained)",
        "input_size": 384,
        "batch": 4,
        "threads": 2,
        "rows": rows,
        "coverage": {"of_quantized": 0.75},
        "storage": split(),
    }
    return {"machine": MACHINE, "models": [part]}


def latency():
    """What `bench latency --batch 1,4 --memory --compare ... --out` writes."""
    rows = [
        speed_row(name, ms, batch=batch, threads=1)
        for batch in (1, 4)
        for name, ms in (("fp32", 80.0), ("igq-vit", 120.0))
    ]
    rows.append(speed_row("onnxruntime", 60.0, batch=1, threads=1, note=""))
    rows.append({"candidate": "openvino", "batch": 1, "threads": 1, "skipped": "no such operator"})
    peaks = [{"candidate": "igq-vit", "batch": 4, "threads": 1, "peak_bytes": 5e8}]
    return {
        "machine": MACHINE,
        "model": "cfrn-small",
        "weights": "shipped",
        "input_size": 160,
        "rows": rows,
        "coverage": {"igq-vit": {"of_quantized": 0.0}},
        "processes": peaks,
    }


QKV = "swin.swin_encoder.layers.2.blocks.10.attn.qkv"


def weights(model="cfrn", layer=QKV):
    """What `bench weights --out` writes."""
    rows = [
        {
            "layer": layer,
            "method": m,
            "role": "attention",
            "mean": a,
            "std": 0.05,
            "p99": 0.125,
            "absmax": 0.5,
        }
        for m, a in (("fp32", -1.25e-4), ("w4a4", 2e-3), ("smoothquant", 1e-6))
    ]
    return {"kind": "weights", "model": model, "weights": "from cfrn.pth", "rows": rows}


def operators():
    """What `bench operators --out` writes."""

    def family(name, title, types, count, quantized, parameters, rule):
        return {
            "family": name,
            "title": title,
            "types": types,
            "count": count,
            "quantized": quantized,
            "parameters": parameters,
            "rule": rule,
        }

    return {
        "kind": "operators",
        "model": "cfrn",
        "method": "cod-tdq",
        "families": [
            family("attention", "Attention Linear", "48 Linear", 48, 48, 1200, "W4A4 token group"),
            family("linear", "Other Linear", "4 Linear", 4, 3, 70, "W4A4 token group"),
            family("norm", "Norms", "58 LayerNorm", 58, 0, 0, "float"),
        ],
        "modules": [
            {
                "module": "swin",
                "types": "52 Linear",
                "count": 52,
                "quantized": 51,
                "parameters": 1270,
            }
        ],
    }


def write(path, document):
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
