"""Whose a file is: signatures of `ssh-keygen`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from codtdq.errors import CheckpointError
from codtdq.printing import printable

NAMESPACE = "codtdq"  # of signatures: one made for another purpose does not count
_SECONDS = 30
_LONGEST = 160  # characters of what ssh-keygen says


def check_signature(data: bytes, proof: Path, signers: str | Path, identity: str | None) -> str:
    """The identity whose signature of these bytes holds; raises `CheckpointError`.

    proof: the file with the signature. signers: an allowed-signers file.
    """
    if identity is None:
        raise CheckpointError("a signature is somebody's: say whose with --identity NAME")
    for path in (Path(signers), proof):
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file; a signature needs it")
    command = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", identity]
    command += ["-n", NAMESPACE, "-s", str(proof)]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CheckpointError(f"ssh-keygen cannot check {proof}: {error}") from error
    if done.returncode:
        words = (done.stdout + done.stderr).decode(errors="replace").split()
        said = printable(" ".join(words))[:_LONGEST]
        raise CheckpointError(f"{proof} is no signature of {identity!r}: {said}")
    return identity
