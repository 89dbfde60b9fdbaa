"""Score folders of maps, from any network: here masks of one model, in float and in four bits."""

from __future__ import annotations

from pathlib import Path

import codtdq
from codtdq.data import ImageFolder, export_synth
from codtdq.evaluation.masks_to_files import predict_to_files
from codtdq.lab.score.run import score
from codtdq.lab.score.sources import of_folders
from codtdq.lab.score.tables import score_table, stats_table
from codtdq.lab.tables import render_tables


def main(out: Path, images: int = 4) -> dict[str, float]:
    """S of both, from the files alone."""
    export_synth("test-easy", out / "synth", count=images, size=96)  # Imgs/ and GT/
    model = codtdq.create_model("escnet-small")
    networks = {"float": model, "w4a4": codtdq.quantize(model, "w4a4")}
    for name, network in networks.items():
        predict_to_files(network, [ImageFolder(out / "synth")], out / name)
    folders = [f"{name}={out / name}" for name in networks]
    scored = score(of_folders(folders, [str(out / "synth")]))
    tables = [score_table(scored), stats_table(scored)]
    print(render_tables([table for table in tables if table is not None]))
    return {name: scored.cells[name, "synth"].means()["S"] for name in networks}


if __name__ == "__main__":
    print(main(Path("maps")))
