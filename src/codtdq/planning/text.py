"""A plan as text: one line per operator, then the totals."""

from __future__ import annotations

from html import escape

from codtdq.columns import columns
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import QuantPlan, Site
from codtdq.printing import printable
from codtdq.schemes.projected import input_label
from codtdq.schemes.symmetric import weight_label

HEADER = ("operator", "type", "role", "shape", "weights", "activations")
_STORED = {"fp32": "FP32", "block8": "8-bit blocks", "tables8": "FP32, tables in 8-bit blocks"}


def format_plan(plan: QuantPlan, width: int | None = None) -> str:
    """The table that `print(plan)` shows; width: of the terminal that it has to fit."""
    totals = (f"{key:<13} {text}" for key, text in summary(plan).items())
    return "\n".join([columns(HEADER, _rows(plan), width), "", *totals])


def plan_html(plan: QuantPlan) -> str:
    """The same for a notebook: the totals, and the operators behind a fold."""
    totals = "".join(
        f"<tr><th>{key}</th><td style='text-align:left'>{escape(text)}</td></tr>"
        for key, text in summary(plan).items()
    )
    head = "".join(f"<th>{title}</th>" for title in HEADER)
    body = "".join(
        "<tr>"
        + "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in _rows(plan)
    )
    return (
        f"<table>{totals}</table><details><summary>{len(plan)} operators</summary>"
        f"<table><tr>{head}</tr>{body}</table></details>"
    )


def _rows(plan: QuantPlan) -> list[tuple[str, ...]]:
    blocks = plan.config.float_storage != "fp32"
    planned = plan.config.plans_formats
    return [tuple(map(printable, _row(site, blocks, planned))) for site in plan.sites]


def _row(site: Site, blocks: bool, planned: bool) -> tuple[str, ...]:
    shape = "x".join(str(side) for side in site.shape)
    if not site.quantized:
        stored = "float, in 8-bit blocks" if blocks and site.in_blocks else "float"
        return (site.name, site.type, site.role, shape, f"{stored}: {site.reason}", "")
    return (
        site.name,
        site.type,
        site.role,
        shape,
        _weights(site, planned),
        _activations(site, planned),
    )


def _weights(site: Site, planned: bool) -> str:
    if site.weight is None:
        return "float"
    if site.weight_format is not None:
        return f"W{site.weight.bits} {site.weight_format}"
    return weight_label(site.weight) if planned else f"W{site.weight.bits}"


def _activations(site: Site, planned: bool) -> str:
    if site.activation is None:
        return "float"
    if site.act_format is not None:
        return f"A{site.activation.bits} {site.act_format}"
    if not planned:
        return f"A{site.activation.bits}"
    return input_label(site.activation, site.static)


def summary(plan: QuantPlan) -> dict[str, str]:
    """The totals in words, by what they are of."""
    totals = plan.totals()
    known = plan.config.plans_formats or any(site.act_cost or site.weight_cost for site in plan)
    effective = (
        f"{totals['bits_per_weight']:.2f} bits per quantized weight, "
        f"{totals['bits_per_activation']:.2f} per quantized activation, scales included"
    )
    share = totals["quantized_parameters"] / max(totals["parameters"], 1)
    ratio = totals["fp32_bytes"] / max(totals["packed_bytes"], 1)
    float_share = totals["float_bytes"] / max(totals["packed_bytes"], 1)
    return {
        "config": plan.config.name,
        "operators": f"{totals['quantized_operators']} of {totals['operators']} quantized",
        "parameters": f"{totals['parameters']:,} ({share:.1%} in low-bit weights)",
        "other": f"{plan.other_parameters:,} parameters (biases, norms, tables) stay float, "
        f"stored as {_STORED[plan.config.float_storage]}",
        "size": f"{totals['packed_bytes'] / 2**20:.2f} MiB packed ({float_share:.1%} of it stays "
        f"float), {totals['fp32_bytes'] / 2**20:.2f} MiB in FP32 ({ratio:.2f}x)",
        "file": "these and a header (names, shapes, settings)"
        + ("" if plan.config.plans_formats else "; calibration may add transforms, biases"),
        "effective": effective if known else "known once the method has chosen its formats",
        **_spare(plan),
    }


def _spare(plan: QuantPlan) -> dict[str, str]:
    """What a method may spend beyond the widths of its config, or what it has spent."""
    config = plan.config
    inputs, weights = (getattr(config, f"spare_{side}_bits", 0) for side in ("act", "weight"))
    if not inputs and not weights:
        return {}
    wider = [site for site in plan.sites if _is_wider(site, plan.config)]
    if wider:
        return {
            "spare": f"{len(wider)} operators have wider codes or smaller groups, counted above"
        }
    return {
        "spare": f"calibration may add up to {weights:.2f} bits per weight and {inputs:.2f} per "
        "activation in the mean, not counted above"
    }


def _is_wider(site: Site, config: QuantConfig) -> bool:
    """Whether a method spent more on a site than the config's widths and groups."""
    return (
        (site.weight_bits or 0) > (config.weight_bits or 8)
        or (site.weight_group or 0) < (config.weight_group_size or 0) * (site.weight is not None)
        or (site.role != "first" and (site.act_bits or 0) > (config.act_bits or 8))
    )
