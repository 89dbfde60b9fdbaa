"""A plan as text: one line per operator, then the totals."""

from __future__ import annotations

from codtdq.planning.plan import QuantPlan, Site
from codtdq.printing import printable
from codtdq.schemes.projected import input_label
from codtdq.schemes.symmetric import weight_label


def format_plan(plan: QuantPlan) -> str:
    """The table that `print(plan)` shows."""
    blocks = plan.config.float_storage == "block8"
    rows = [
        tuple(map(printable, _row(site, blocks, plan.config.plans_formats))) for site in plan.sites
    ]
    header = ("operator", "type", "role", "shape", "weights", "activations")
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in [header, *rows]
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, *_summary(plan)])


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


def _summary(plan: QuantPlan) -> list[str]:
    totals = plan.totals()
    known = plan.config.plans_formats or any(site.act_cost or site.weight_cost for site in plan)
    effective = (
        f"{totals['bits_per_weight']:.2f} bits per quantized weight, "
        f"{totals['bits_per_activation']:.2f} per quantized activation, scales included"
    )
    share = totals["quantized_parameters"] / max(totals["parameters"], 1)
    ratio = totals["fp32_bytes"] / max(totals["packed_bytes"], 1)
    return [
        "",
        f"config        {plan.config.name}",
        f"operators     {totals['quantized_operators']} of {totals['operators']} quantized",
        f"parameters    {totals['parameters']:,} ({share:.1%} in low-bit weights)",
        f"other         {plan.other_parameters:,} parameters (biases, norms, tables) stay float, "
        f"stored as {'8-bit blocks' if plan.config.float_storage == 'block8' else 'FP32'}",
        f"size          {totals['packed_bytes'] / 2**20:.2f} MiB packed, "
        f"{totals['fp32_bytes'] / 2**20:.2f} MiB in FP32 ({ratio:.2f}x)",
        f"effective     {effective if known else 'known once the method has chosen its formats'}",
    ]
