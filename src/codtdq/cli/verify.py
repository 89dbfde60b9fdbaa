"""`codtdq verify`: whether a quantized model is sound, and whose it is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from codtdq.cli.common import describe, print_json
from codtdq.printing import printable

if TYPE_CHECKING:
    from codtdq.checkpoint.verify import Verified
    from codtdq.exporting.verify import VerifiedProgram


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        [
            "my-model-w4a4",
            "net.codtdq",
            "my-model-w4a4 --signers allowed_signers --identity me@example.org",
        ],
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="what `codtdq quantize` or `codtdq export --to program` wrote",
    )
    parser.add_argument(
        "--signers", metavar="FILE", help="allowed signers of ssh-keygen: a signature must hold"
    )
    parser.add_argument("--identity", metavar="NAME", help="whose signature it must be")
    parser.add_argument(
        "--signature", metavar="FILE", help="the signature (default DIR/codtdq.json.sig, FILE.sig)"
    )
    parser.set_defaults(run=run_verify)


def run_verify(args: argparse.Namespace) -> None:
    """Print what was checked; what is unsound is an error."""
    from codtdq.api import verify
    from codtdq.checkpoint.verify import Verified

    found = verify(
        args.model, signers=args.signers, identity=args.identity, signature=args.signature
    )
    if args.json:
        print_json(found.to_dict())
    elif isinstance(found, Verified):
        _show_checkpoint(found)
    else:
        _show_program(found)


def _show_checkpoint(found: Verified) -> None:
    compared = "the registered network" if found.network else "itself: it is not registered"
    print(f"{found.directory}: sound")
    print(f"  format        {found.format}")
    print(f"  architecture  {printable(found.architecture)}, compared with {compared}")
    print(f"  method        {printable(found.method)}, {found.operators} quantized operators")
    print(f"  tensors       {found.tensors} in {found.bytes} bytes, sha256 {found.sha256}")
    print(f"  signature     {'not asked for' if found.signed_by is None else found.signed_by}")


def _show_program(found: VerifiedProgram) -> None:
    sizes = ", ".join(" x ".join(map(str, one)) for one in found.inputs)
    print(f"{found.path}: sound")
    print(f"  format        program file {found.format}")
    print(f"  network       {printable(found.model)}, {printable(found.method)}, input {sizes}")
    print(f"  instructions  {found.instructions}")
    print(f"  memory        {found.weight_bytes} bytes of weights, {found.run_bytes} for a run")
    print(f"  file          {found.bytes} bytes, sha256 {found.sha256}")
    print(f"  signature     {'not asked for' if found.signed_by is None else found.signed_by}")
