"""`python -m codtdq.runtime NET IMAGE --out MASK`: a mask without torch."""

from __future__ import annotations

import argparse
import io
import sys

from codtdq.errors import CodtdqError, UnsupportedError
from codtdq.io import write_bytes
from codtdq.runtime import Runtime


def main(argv: list[str] | None = None) -> int:
    """Write the mask of an image; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m codtdq.runtime", description=__doc__)
    parser.add_argument("network", help="file that `codtdq export --to program` wrote")
    parser.add_argument("image", help="image file")
    parser.add_argument("--out", required=True, metavar="FILE", help="mask to write, a PNG")
    parser.add_argument("--threshold", type=float, help="cut the mask at this part of its range")
    parser.add_argument("--threads", type=int, help="processor threads (default: every core)")
    args = parser.parse_args(argv)
    try:
        try:
            from PIL import Image
        except ModuleNotFoundError as error:
            raise UnsupportedError("image files need Pillow; run pip install pillow") from error
        network = Runtime(args.network, threads=args.threads)
        mask = network.predict(args.image, threshold=args.threshold)
        picture = io.BytesIO()
        Image.fromarray(mask).save(picture, format="PNG")
        write_bytes(args.out, picture.getvalue())
    except CodtdqError as error:
        print(f"codtdq.runtime: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"codtdq.runtime: error: {args.out}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
