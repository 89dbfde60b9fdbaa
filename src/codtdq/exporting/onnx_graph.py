"""Make a graph of the exporter small: what it says of the code that it saw is half of a small file.

Inputs, outputs and weights keep their names; what lies between them has short ones.
"""

from __future__ import annotations

from typing import Any


def strip(document: Any) -> None:
    """Leave out notes and names of operators, write equal constants once, shorten other names."""
    graph = document.graph
    del document.metadata_props[:], graph.metadata_props[:], graph.value_info[:]
    for one in [*graph.node, *graph.initializer, *graph.input, *graph.output]:
        one.doc_string = ""
        del one.metadata_props[:]
    for node in graph.node:
        node.name = ""
    if any(one.HasField("g") or one.graphs for node in graph.node for one in node.attribute):
        return  # a graph inside reads names from outside
    outside = {one.name for one in [*graph.initializer, *graph.input, *graph.output]}
    _join_constants(graph, outside)
    _shorten(graph, outside)


def _join_constants(graph: Any, outside: set[str]) -> None:
    first: dict[bytes, str] = {}
    joined: dict[str, str] = {}
    kept = []
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] not in outside:
            value = b"".join(one.SerializeToString(deterministic=True) for one in node.attribute)
            name = first.setdefault(value, node.output[0])
            if name != node.output[0]:
                joined[node.output[0]] = name
                continue
        for at, name in enumerate(node.input):
            node.input[at] = joined.get(name, name)
        kept.append(node)
    kept = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(kept)


def _shorten(graph: Any, outside: set[str]) -> None:
    short: dict[str, str] = {"": ""}  # an input that is left out
    for node in graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                if name not in outside:
                    names[at] = short.setdefault(name, f"#{len(short)}")
