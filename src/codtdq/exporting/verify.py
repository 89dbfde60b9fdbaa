"""Say whether a program file is sound, without running it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codtdq.errors import CheckpointError
from codtdq.runtime import Runtime
from codtdq.signature import check_signature


@dataclass(frozen=True)
class VerifiedProgram:
    """What was found in a program file that passed."""

    path: Path
    format: int
    model: str
    method: str
    inputs: tuple[tuple[int, ...], ...]  # of its programs
    instructions: int
    weight_bytes: int
    run_bytes: int  # memory of the largest run, beside the weights
    bytes: int
    sha256: str
    signed_by: str | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {**vars(self), "path": str(self.path), "inputs": [list(one) for one in self.inputs]}


def verify_program(
    path: str | Path,
    *,
    signers: str | Path | None = None,
    identity: str | None = None,
    signature: str | Path | None = None,
) -> VerifiedProgram:
    """Check container, hash, every constant and every instruction; raises `CheckpointError`.

    A signature covers the whole file; it lies in PATH.sig unless `signature` says where. The bytes
    that are checked are the bytes whose signature is.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        network = Runtime(data, threads=1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    with network:
        signed_by = None
        if signers is not None:
            proof = Path(f"{path}.sig") if signature is None else Path(signature)
            signed_by = check_signature(data, proof, signers, identity)
        shapes, info = network.shapes, network.info
        return VerifiedProgram(
            path=path,
            format=int(info["version"]),
            model=info.get("model", ""),
            method=info.get("method", ""),
            inputs=tuple(one.input for one in shapes),
            instructions=sum(one.instructions for one in shapes),
            weight_bytes=network.weight_bytes,
            run_bytes=max(one.arena_bytes for one in shapes),
            bytes=len(data),
            sha256=info["sha256"],
            signed_by=signed_by,
        )
