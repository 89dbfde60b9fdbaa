"""Change a saved checkpoint as somebody would who means harm: all hashes are made to fit again."""

import json

from safetensors.torch import load, save

from codtdq.checkpoint import header
from codtdq.checkpoint.files import sha256, weights_name


def weights_of(path):
    """The file of tensors that a checkpoint points to."""
    return path / json.loads((path / "codtdq.json").read_text())["weights"]


def edit_meta(path, **changes):
    """Change fields of the JSON, and seal it anew; ... removes a field."""
    meta = json.loads((path / "codtdq.json").read_text())
    meta.update(changes)
    put_meta(path, {k: v for k, v in meta.items() if v is not ...})


def put_meta(path, meta):
    (path / "codtdq.json").write_text(header.to_text(header.seal(meta)))


def change_meta(path, change):
    """Change the JSON in place by a function."""
    meta = json.loads((path / "codtdq.json").read_text())
    change(meta)
    put_meta(path, meta)


def put(path, data):
    """Exchange the file of tensors, and let the JSON name the new one."""
    weights_of(path).write_bytes(data)
    digest = sha256(weights_of(path))
    weights_of(path).rename(path / weights_name(digest))
    edit_meta(path, sha256=digest, weights=weights_name(digest))


def rewrite(path, change):
    """Change the tensors in place by a function."""
    entries = load(weights_of(path).read_bytes())
    change(entries)
    put(path, save(entries))
