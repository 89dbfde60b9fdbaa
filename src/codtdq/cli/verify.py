"""`codtdq verify`: whether a checkpoint is sound, and whose it is."""

from __future__ import annotations

import argparse

from codtdq.cli.common import describe, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        ["my-model-w4a4", "my-model-w4a4 --signers allowed_signers --identity me@example.org"],
    )
    parser.add_argument("directory", metavar="DIR", help="what `codtdq quantize` wrote")
    parser.add_argument(
        "--signers", metavar="FILE", help="allowed signers of ssh-keygen: a signature must hold"
    )
    parser.add_argument("--identity", metavar="NAME", help="whose signature it must be")
    parser.add_argument(
        "--signature", metavar="FILE", help="the signature (default DIR/codtdq.json.sig)"
    )
    parser.set_defaults(run=run_verify)


def run_verify(args: argparse.Namespace) -> None:
    """Print what was checked; what is unsound is an error."""
    from codtdq.api import verify

    found = verify(
        args.directory, signers=args.signers, identity=args.identity, signature=args.signature
    )
    if args.json:
        print_json(found.to_dict())
        return
    compared = "the registered network" if found.network else "itself: it is not registered"
    print(f"{found.directory}: sound")
    print(f"  format        {found.format}")
    print(f"  architecture  {found.architecture}, compared with {compared}")
    print(f"  method        {found.method}, {found.operators} quantized operators")
    print(f"  tensors       {found.tensors} in {found.bytes} bytes, sha256 {found.sha256}")
    print(f"  signature     {'not asked for' if found.signed_by is None else found.signed_by}")
