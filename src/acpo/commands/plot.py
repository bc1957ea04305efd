"""acpo plot: a picture of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from acpo.report.figure import draw_run


@dataclass(frozen=True)
class PlotArguments:
    """Draw score and λ over the steps of a run (needs the extra acpo[plot])."""

    run: tyro.conf.Positional[Path]
    """A run directory."""
    out: Path | None = None
    """Picture to write (png, svg or pdf); by default run.png inside the run directory."""


def main(words: list[str]) -> int:
    arguments = tyro.cli(PlotArguments, prog="acpo plot", args=words)
    out = arguments.out or arguments.run / "run.png"
    draw_run(arguments.run, out)
    print(f"drawn in {out}")
    return 0
