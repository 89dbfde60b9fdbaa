"""Say whether a checkpoint is sound, without building or running anything of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from codtdq.checkpoint import files, validation
from codtdq.checkpoint.validation import ConfigReader
from codtdq.errors import CheckpointError
from codtdq.signature import check_signature

SIGNATURE = "codtdq.json.sig"


@dataclass(frozen=True)
class Verified:
    """What was found in a checkpoint that passed."""

    directory: Path
    format: int
    architecture: str
    method: str
    operators: int
    tensors: int
    bytes: int
    sha256: str
    network: bool  # compared with the registered network, not only with itself
    signed_by: str | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {**vars(self), "directory": str(self.directory)}


def verify(
    directory: str | Path,
    read_config: ConfigReader,
    skeleton_of: Callable[[str], nn.Module | None],
    *,
    signers: str | Path | None = None,
    identity: str | None = None,
    signature: str | Path | None = None,
) -> Verified:
    """Check format, both hashes, plan, settings and buffers; raises `CheckpointError`.

    skeleton_of: the network of an architecture's name, or None where it is not registered.
    signers: an allowed-signers file of `ssh-keygen`; then the signature of `identity` must hold.
        It covers the header, which holds the hash of the tensors.
    """
    directory = Path(directory)
    meta = files.read_meta(directory)
    model = skeleton_of(meta["architecture"])
    claimed = 8 * int(meta["plan"]["parameters"]) + validation.SPARE_BYTES
    limit = claimed if model is None else validation.byte_limit(model)
    meta, entries = files.read(directory, limit, meta)
    try:
        checked = validation.validate(meta, entries, read_config, model)
    except CheckpointError as error:
        raise CheckpointError(f"{directory}: {error}") from error
    signed_by = None
    if signers is not None:
        proof = directory / SIGNATURE if signature is None else Path(signature)
        signed_by = check_signature((directory / files.META).read_bytes(), proof, signers, identity)
    return Verified(
        directory=directory,
        format=meta["format"],
        architecture=meta["architecture"],
        method=checked.plan.config.name,
        operators=len(checked.operators),
        tensors=len(checked.tensors.names),
        bytes=(directory / meta["weights"]).stat().st_size,
        sha256=meta["sha256"],
        network=model is not None,
        signed_by=signed_by,
    )
