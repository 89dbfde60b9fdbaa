"""The endpoints as OpenAPI 3.1 describes them, for programs."""

from __future__ import annotations

from typing import Any

from codtdq._version import __version__
from codtdq.lab.serve.limits import Limits
from codtdq.lab.serve.variants import FLOAT, PLUS, TITLES


def description(limits: Limits) -> dict[str, Any]:
    """The document that `/openapi.json` gives."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "codtdq serve",
            "version": __version__,
            "description": "Masks of camouflaged objects, in FP32 and at four bits.",
        },
        "paths": {
            "/predict": {"post": _predict(limits)},
            "/evidence": {"post": _evidence(limits)},
            "/models": {
                "get": {
                    "summary": "The networks: state, size and execution of each",
                    "responses": {"200": _json("The networks", _models())},
                }
            },
            "/samples/{number}": {
                "get": {
                    "summary": "A picture to try",
                    "parameters": [
                        {
                            "name": "number",
                            "in": "path",
                            "required": True,
                            "schema": {"type": "integer", "minimum": 0},
                        }
                    ],
                    "responses": {"200": _jpeg("The picture"), "404": _error("No such number")},
                }
            },
        },
    }


def _predict(limits: Limits) -> dict[str, Any]:
    return {
        "summary": "Segment one picture",
        "parameters": [
            _query(
                "method",
                f"one or several of {', '.join(TITLES)}, with commas between them",
                {"type": "string", "default": PLUS},
            ),
            _query(
                "output",
                "JSON with every mask, or one PNG: the mask, or the object on a transparent ground",
                {"type": "string", "enum": ["json", "mask", "cutout"], "default": "json"},
            ),
        ],
        "requestBody": _body(limits),
        "responses": {
            "200": {
                "description": "The masks",
                "content": {
                    "application/json": {"schema": _masks()},
                    "image/png": {"schema": {"type": "string", "format": "binary"}},
                },
            },
            **_errors(),
        },
    }


def _evidence(limits: Limits) -> dict[str, Any]:
    layer = _object(
        layer={"type": "string"},
        zero_mass={"type": "number", "description": "share of non-zero inputs that became zero"},
        png={"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"},
    )
    schema = _object(method={"type": "string"}, layers={"type": "array", "items": layer})
    names = [method for method in TITLES if method != FLOAT]
    return {
        "summary": "Where the inputs of each layer fall into the zero bin",
        "parameters": [_query("method", "", {"type": "string", "enum": names, "default": PLUS})],
        "requestBody": _body(limits),
        "responses": {"200": _json("Heat maps by layer", schema), **_errors()},
    }


def _masks() -> dict[str, Any]:
    mask = _object(
        method={"type": "string"},
        title={"type": "string"},
        milliseconds={"type": "number", "description": "of this run on this machine"},
        mib={"type": "number", "description": "size of the weights as a file, MiB"},
        execution={"type": "string"},
        covered={"type": "number", "description": "share of the picture that is object"},
        png={"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"},
    )
    return _object(
        model={"type": "string"},
        width={"type": "integer"},
        height={"type": "integer"},
        masks={"type": "array", "items": mask},
    )


def _models() -> dict[str, Any]:
    method = {
        "type": "object",
        "properties": {
            "method": {"type": "string"},
            "title": {"type": "string"},
            "state": {"enum": ["ready", "preparing", "failed"]},
            "mib": {"type": "number"},
            "execution": {"type": "string"},
            "reason": {"type": "string"},
        },
        "required": ["method", "title", "state"],
    }
    return _object(
        model={"type": "string"},
        methods={"type": "array", "items": method},
        samples={"type": "array", "items": {"type": "string"}},
        limits=_object(bytes={"type": "integer"}, pixels={"type": "integer"}),
    )


def _body(limits: Limits) -> dict[str, Any]:
    binary = {"schema": {"type": "string", "format": "binary"}}
    text = f"The bytes of an image file: {limits.bytes} bytes and {limits.pixels} pixels at most"
    return {
        "required": True,
        "description": text,
        "content": {"image/*": binary, "application/octet-stream": binary},
    }


def _errors() -> dict[str, Any]:
    busy = _error("Busy or still preparing; Retry-After says when to try again")
    busy["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return {
        "400": _error("The body is no image, or a parameter is not known"),
        "408": _error("The upload took too long"),
        "413": _error("The upload is too large"),
        "415": _error("The content type is not accepted"),
        "503": busy,
        "504": _error("The answer took too long"),
    }


def _error(text: str) -> dict[str, Any]:
    return _json(text, _object(error={"type": "string"}))


def _json(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _jpeg(text: str) -> dict[str, Any]:
    schema = {"type": "string", "format": "binary"}
    return {"description": text, "content": {"image/jpeg": {"schema": schema}}}


def _query(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    found = {"name": name, "in": "query", "required": False, "schema": schema}
    return found | ({"description": text} if text else {})


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}
