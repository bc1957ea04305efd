"""acpo theory: the paper's statements, checked exactly on tabular problems."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from acpo.errors import UserError
from acpo.files import write_json

if TYPE_CHECKING:
    from acpo.theory.check import Row
    from acpo.theory.mdp import Problem


@dataclass(frozen=True)
class TheoryArguments:
    """Check every statement of the paper over random problems, in float64.

    Exit code 1 if a statement that should hold is violated. What each line means, and the
    derivations: docs/theory.md.
    """

    mdps: int = 1_000
    """Random problems; half as many whose πβ has holes, gridworlds and chains are added."""
    states: int = 5
    """States of a random problem."""
    actions: int = 3
    """Actions of a random problem."""
    seed: int = 0
    """Seed of the problems."""
    out: Path = Path("theory")
    """Folder for the figures theory-g.png and theory-bound.png (needs acpo[plot])."""
    json: Path | None = None
    """Also write everything to this file."""


def main(words: list[str]) -> int:
    arguments = tyro.cli(TheoryArguments, prog="acpo theory", args=words)
    if min(arguments.mdps, arguments.states) < 1 or arguments.actions < 2:
        raise UserError("--mdps and --states must be at least 1, --actions at least 2.")
    if arguments.seed < 0:
        raise UserError("--seed must not be negative.")
    from acpo.theory.check import batches, check

    started = time.perf_counter()
    problems = batches(arguments.mdps, arguments.states, arguments.actions, arguments.seed)
    rows = check(problems.values())
    seconds = time.perf_counter() - started
    kinds = ", ".join(f"{len(problem):,} {name}" for name, problem in problems.items())
    _show(rows, f"{kinds}: {seconds:.1f} s")
    wrong = [row.statement.claim for row in rows if not row.as_expected]
    for claim in wrong:
        print(f"VIOLATED, and should hold: {claim}")
    _draw(problems["random"], arguments.out)
    if arguments.json:
        write_json(arguments.json, _found(arguments, rows, kinds, seconds))
        print(f"written to {arguments.json}")
    return 1 if wrong else 0


def _draw(problem: Problem, out: Path) -> None:
    from acpo.report.figure import pyplot
    from acpo.report.theory import draw_bounds, draw_density

    try:
        pyplot()
    except UserError as missing:
        # The table is the answer, and has been given; the figures only illustrate it.
        print(missing)
        return
    draw_density(problem, out / "theory-g.png")
    draw_bounds(out / "theory-bound.png")
    print(f"drawn in {out}: theory-g.png, theory-bound.png")


def _show(rows: list[Row], caption: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from acpo.theory.counterexamples import COUNTEREXAMPLES

    table = Table(title="The paper's statements", caption=caption)
    for name in ("statement", "where", "form", "verdict"):
        table.add_column(name, overflow="fold")
    for name in ("largest violation", "tightness", "violated on"):
        table.add_column(name, justify="right")
    for row in rows:
        statement = row.statement
        table.add_row(
            escape(statement.claim),
            statement.where,
            statement.form,
            _verdict(row),
            f"{row.violation:.1e}" if math.isfinite(row.violation) else "undefined",
            f"{row.tightness:.3f}" if statement.holds and math.isfinite(row.tightness) else "",
            f"{100 * row.violated:.3g} %" if row.violated else "",
            end_section=statement.key in _SECTION_ENDS,
        )
    # A pipe has no width of its own, and the table needs some.
    console = Console(width=None if Console().is_terminal else 150, highlight=False)
    console.print(table)
    console.print(
        "violation: relative to 1 + the size of what is bounded. tightness: 1 where a bound is "
        "attained; of a lower bound on J, the largest share of the allowed loss that was lost."
    )
    failing = [row for row in rows if not row.statement.holds]
    console.print("\n[bold]Fails as printed[/bold], with the smallest counterexample found:")
    for says, claims in _grouped(failing, lambda row: COUNTEREXAMPLES[row.statement.key].says):
        console.print(f"• {claims}\n    {says}", markup=False)
    assuming = [row for row in rows if row.statement.holds and row.statement.assumes]
    console.print("\n[bold]Holds under an assumption[/bold] that has to be named:")
    for assumes, claims in _grouped(assuming, lambda row: row.statement.assumes):
        console.print(f"• {assumes}\n    {claims}", markup=False)
    skipped = [row for row in rows if row.skipped]
    if skipped:
        console.print("\nPairs of problem and λ that could not be checked:")
    for row in skipped:
        why = "C_min = 0" if row.statement.key == "ratio_corrected" else "no fixed point found"
        console.print(f"• {_name(row)}: {row.skipped}, {why}", markup=False)


def _grouped(rows: list[Row], key: Callable[[Row], str]) -> Iterator[tuple[str, str]]:
    """Each text once, with the statements it belongs to."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(_name(row))
    return ((text, "; ".join(names)) for text, names in groups.items())


def _name(row: Row) -> str:
    return f"{row.statement.where}: {row.statement.claim}"


_SECTION_ENDS = {
    "normaliser_corrected",
    "sac_corrected",
    "duality",
    "wbc_corrected",
    "density_shift",
}


def _verdict(row: Row) -> str:
    if not row.statement.holds:
        return "[red]fails[/red]"
    return "[green]holds[/green]" if row.as_expected else "[bold red]VIOLATED[/bold red]"


def _found(
    arguments: TheoryArguments, rows: list[Row], kinds: str, seconds: float
) -> dict[str, Any]:
    from acpo.theory.counterexamples import COUNTEREXAMPLES

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "problems": kinds,
        "states": arguments.states,
        "actions": arguments.actions,
        "seed": arguments.seed,
        "seconds": round(seconds, 2),
        "statements": [
            {
                "key": row.statement.key,
                "claim": row.statement.claim,
                "where": row.statement.where,
                "form": row.statement.form,
                "should_hold": row.statement.holds,
                "as_expected": row.as_expected,
                "assumes": row.statement.assumes,
                "largest_violation": number(row.violation),
                "tolerance": row.statement.tolerance,
                "tightness": number(row.tightness),
                "violated_share": row.violated,
                "skipped": row.skipped,
                "counterexample": None
                if row.statement.holds
                else COUNTEREXAMPLES[row.statement.key].says,
            }
            for row in rows
        ],
    }
