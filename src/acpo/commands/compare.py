"""acpo compare: methods side by side on one dataset."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from acpo.algorithms import ALGORITHMS, choose
from acpo.algorithms.acpo import ACPO
from acpo.data import DEFAULT, DataOptions
from acpo.data.registry import load
from acpo.errors import UserError
from acpo.experiments.compare import Comparison, compare
from acpo.files import write_json
from acpo.report import comparison
from acpo.report.figure import save
from acpo.training.loop import TrainConfig
from acpo.training.reporting import ConsoleReporter
from acpo.training.stopping import Interrupted


@dataclass(frozen=True)
class CompareArguments:
    """Train several methods on the same data with the same seeds, and compare them.

    ACPO and its special cases share critic and πβ; methods of others have their own.

    The same command again goes on where it was stopped, or only shows what is finished.
    """

    dataset: tyro.conf.Positional[str] = DEFAULT
    """A name (acpo data list), a file, a folder, a Minari id, or several joined by '+'."""
    methods: str = "acpo,wbc,awac,inac,bc"
    """Methods to compare, separated by commas."""
    out: Path | None = None
    """Folder for all of it; by default runs/compare-DATASET."""
    report: bool = False
    """Also write report.html: the table and the picture on one page."""
    json: Path | None = None
    """Also write the numbers to this file (they always stand in OUT/comparison.json)."""
    data: Annotated[DataOptions, tyro.conf.arg(name="")] = field(default_factory=DataOptions)
    training: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: TrainConfig(steps=100_000, seeds=3)
    )
    config: Annotated[ACPO, tyro.conf.arg(name="")] = field(default_factory=ACPO)


def parse(words: list[str]) -> CompareArguments:
    """Read twice: a task has its own number of episodes per evaluation."""
    asked = [word for word in words if word not in ("-h", "--help")]
    dataset = tyro.cli(CompareArguments, prog="acpo compare", args=asked).dataset
    episodes = choose("acpo", "default", dataset).episodes
    default = CompareArguments()
    if episodes is not None:
        default = replace(default, training=replace(default.training, episodes=episodes))
    return tyro.cli(CompareArguments, prog="acpo compare", args=words, default=default)


def main(words: list[str]) -> int:
    arguments = parse(words)
    methods = [name.strip() for name in arguments.methods.split(",") if name.strip()]
    if not methods:
        raise UserError(f"--methods is empty; choose from {', '.join(ALGORITHMS)}.")
    for method in methods:
        choose(method)
    if len(set(methods)) < len(methods):
        raise UserError(f"--methods {arguments.methods} names a method twice.")
    data = load(arguments.dataset, arguments.data)
    if (arguments.training.env == "auto" and data.environment is None) or (
        arguments.training.env == "none"
    ):
        raise UserError(
            f"{arguments.dataset} names no environment to compare in; give one with --env."
        )
    out = arguments.out or Path("runs") / f"compare-{data.name.replace('/', '-')}"
    console = Console()

    def reporter(method: str) -> ConsoleReporter:
        console.print(f"{method}: {out / method}", markup=False, highlight=False)
        return ConsoleReporter(console)

    command = shlex.join(["acpo", "compare", *words])
    try:
        comparison_found = compare(
            data,
            methods,
            arguments.config,
            arguments.training,
            out,
            reporter,
            as_recorded=arguments.data.relabel is None,
        )
    except Interrupted as stopped:
        print(f"\nStopped {stopped}; nothing is lost. Continue with:\n  {command}", file=sys.stderr)
        return 130
    found = as_json(comparison_found, arguments.training.episodes, command)
    write_json(out / "comparison.json", found)
    if arguments.json:
        write_json(arguments.json, found)
    _show(console, found)
    figure = comparison.draw(found)
    if arguments.report:
        comparison.write_page(found, figure, command, out / "report.html")
    save(figure, out / "comparison.png")
    for name in ("comparison.json", "comparison.png", *["report.html"] * arguments.report):
        console.print(f"written   {out / name}", markup=False, highlight=False, soft_wrap=True)
    for method, why in comparison_found.stopped.items():
        print(f"{method} has no result. {why}", file=sys.stderr)
    return 2 if comparison_found.stopped else 0


def as_json(found: Comparison, episodes: int, command: str) -> dict[str, Any]:
    """The comparison as plain numbers; everything the picture and the page need."""
    return {
        "command": command,
        "dataset": found.dataset,
        "environment": found.environment,
        "quantity": found.quantity,
        "checkpoint": "last",
        "steps": found.steps,
        "seeds": found.seeds,
        "episodes": episodes,
        "data": found.data,
        "methods": {
            result.method: {
                "directory": str(result.directory),
                **result.estimate._asdict(),
                "results": result.results.tolist(),
                "lambda": result.lam,
                "alpha": result.alpha,
            }
            for result in found.results
        },
        "stopped": found.stopped,
    }


def _show(console: Console, found: dict[str, Any]) -> None:
    table = Table(
        title=f"{found['quantity']} on {found['dataset']}: last checkpoint of {found['steps']:,} "
        f"steps, {len(found['seeds'])} seeds × {found['episodes']} episodes"
    )
    for heading in comparison.HEADINGS:
        table.add_column(heading)
    for row in comparison.rows(found):
        table.add_row(*row)
    console.print(table)
