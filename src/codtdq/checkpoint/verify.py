"""Say whether a checkpoint is sound, without building or running anything of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from codtdq.checkpoint import files, validation
from codtdq.checkpoint.validation import ConfigReader
from codtdq.errors import CheckpointError

NAMESPACE = "codtdq"  # of signatures: one made for another purpose does not count
SIGNATURE = "codtdq.json.sig"
_SIGNATURE_SECONDS = 30


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
    meta, entries = files.read(directory, limit)
    try:
        checked = validation.validate(meta, entries, read_config, model)
    except CheckpointError as error:
        raise CheckpointError(f"{directory}: {error}") from error
    signed_by = None
    if signers is not None:
        signed_by = _check_signature(directory, Path(signers), identity, signature)
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


def _check_signature(
    directory: Path, signers: Path, identity: str | None, signature: str | Path | None
) -> str:
    """The identity whose signature of `codtdq.json` holds."""
    if identity is None:
        raise CheckpointError("a signature is somebody's: say whose with --identity NAME")
    proof = directory / SIGNATURE if signature is None else Path(signature)
    for path in (signers, proof):
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file; a signature needs it")
    command = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", identity]
    command += ["-n", NAMESPACE, "-s", str(proof)]
    try:
        done = subprocess.run(
            command,
            input=(directory / files.META).read_bytes(),
            capture_output=True,
            timeout=_SIGNATURE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CheckpointError(f"ssh-keygen cannot check {proof}: {error}") from error
    if done.returncode:
        said = validation.shortened((done.stdout + done.stderr).decode(errors="replace"), 160)
        raise CheckpointError(f"{proof} is no signature of {identity!r}: {said}")
    return identity
