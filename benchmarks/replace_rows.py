"""Put the rows of a newer run in the place of those of the same cells: `replace_rows.py OLD NEW`.

OLD and NEW are folders of `codtdq bench accuracy`. Other rows of OLD stay, and so does the order; a
row of NEW whose cell OLD does not have is an error, so that no file grows by mistake.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from codtdq.io import write_text
from codtdq.lab.bench.cells import row_identity
from codtdq.lab.bench.rows import RESULTS, read_results


def main() -> None:
    """Replace, and say how many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    args = parser.parse_args()
    known = {row_identity(row) for row in read_results(args.old)}
    newer = read_results(args.new)
    wrong = [row for row in newer if row_identity(row) not in known or row["status"] != "ok"]
    if wrong:
        first = ", ".join(str(part) for part in row_identity(wrong[0]))
        raise SystemExit(f"{len(wrong)} rows are of other cells, or failed: {first}")
    replaced = {row_identity(row): row for row in newer}
    lines = (args.old / RESULTS).read_text().splitlines()
    for at, line in enumerate(lines):  # the others stay as they are written
        row = replaced.get(row_identity(json.loads(line)))
        if row is not None:
            lines[at] = json.dumps(row, separators=(",", ":"))
    write_text(args.old / RESULTS, "\n".join(lines) + "\n")
    print(f"{len(newer)} of {len(known)} rows replaced")


if __name__ == "__main__":
    main()
