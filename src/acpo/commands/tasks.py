"""acpo tasks: the tasks by name, with their sizes, scores and the paper's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from acpo.data.catalogue import ENTRIES
from acpo.errors import UserError
from acpo.files import write_json
from acpo.tasks.table import AUTHORS, TASKS, Task, suggestion

WIDTH = 100
LEGEND = """
size: observations/actions/steps of an episode. reference: returns that score 0 and 100. paper: the
score of its ACPO. α, ε: its settings, by --preset paper, which leaves observations raw. eps,
reward: episodes per evaluation and reward trained on, always unless a flag says otherwise. here:
dataset and environment. acpo tasks NAME tells more."""
# How to get what a task's environment needs.
_REMEDIES = {
    "gymnasium_robotics": "pip install 'acpo[robotics]'",
    "neorl2": "put a source checkout of github.com/polixir/NeoRL2 on PYTHONPATH",
}


@dataclass(frozen=True)
class TasksArguments:
    """Every task: an environment, its data, its scores and the paper's settings by one name."""

    name: tyro.conf.Positional[str | None] = None
    """Show all that is known of this task."""
    json: Path | None = None
    """Also write it to this file."""


def main(words: list[str]) -> int:
    arguments = tyro.cli(TasksArguments, prog="acpo tasks", args=words)
    name = arguments.name
    if name is not None and name not in TASKS:
        raise UserError(f"No task is named {name!r}. {suggestion(name)}")
    tasks = list(TASKS.values()) if name is None else [TASKS[name]]
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(width=WIDTH)
    if name is None:
        console.print(_table(tasks))
    lines = [LEGEND] if name is None else _facts(tasks[0])
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if arguments.json:
        write_json(arguments.json, {"tasks": [_record(task) for task in tasks]})
    return 0


def _table(tasks: list[Task]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("size", no_wrap=True)
    table.add_column("reference", no_wrap=True, justify="right")
    table.add_column("paper", no_wrap=True, justify="right")
    for title in ("α", "ε", "eps", "reward"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("here", no_wrap=True)
    suite = tasks[0].name.split("/")[0]
    for task in tasks:
        if task.name.split("/")[0] != suite:
            suite = task.name.split("/")[0]
            table.add_row()
        preset = task.preset
        here = {"data": ENTRIES[task.name].here, "env": task.runs_here}
        table.add_row(
            task.name,
            "/".join(map(str, task.sizes)),
            f"{task.reference.minimum:.4g}…{task.reference.maximum:.5g}",
            f"{task.paper.mean} ± {task.paper.deviation}" if task.paper else "",
            f"{preset.alpha}",
            f"{preset.epsilon:g}",
            f"{preset.episodes}",
            preset.relabel.replace("reward", "r") if preset.relabel else "raw",
            " ".join(what for what, found in here.items() if found),
        )
    return table


def _facts(task: Task) -> list[str]:
    """One task for a person, line by line."""
    entry, preset = ENTRIES[task.name], task.preset
    facts = entry.facts
    lines = [
        f"task         {task.name}",
        f"sizes        {task.sizes.observations} observations, {task.sizes.actions} actions, at "
        f"most {task.sizes.horizon} steps",
        f"reference    return {task.reference.minimum:g} scores 0, "
        f"{task.reference.maximum:g} scores 100",
    ]
    if task.paper:
        seeds = 3 if entry.suite == "neorl2" else 5
        score = f"{task.paper.mean} ± {task.paper.deviation}"
        lines.append(f"paper        ACPO scores {score} (deviation over {seeds} seeds)")
    elif entry.suite != "builtin":
        lines.append("paper        not among its tasks")
    reward = f"trained on '{preset.relabel}'" if preset.relabel else "as recorded"
    observations = "z-scored" if preset.normalize_observations else "raw"
    lines += [
        f"evaluation   {preset.episodes} episodes, the reward {reward}: by default and by preset",
        f"preset       α {preset.alpha}, ε {preset.epsilon:g}, observations {observations}: "
        f"acpo train {task.name} --preset paper",
        f"             for a file of your own: acpo train FILE --preset {preset.name}",
        f"environment  {task.environment}, {_where(task)}",
    ]
    if entry.suite == "neorl2":
        authors = task.name.replace("neorl2/", AUTHORS)
        lines.append(f"             --env {authors} for its authors', on their source")
    numbers = [
        f"{facts.rows:,} rows" if facts.rows else None,
        f"{facts.episodes:,} episodes" if facts.episodes else None,
        f"{facts.size / 1e6:.1f} MB" if facts.size else None,
        f"score {facts.score}" if facts.score is not None else None,
    ]
    here = str(entry.here) if entry.here else "not here; fetched when it is first used"
    return [*lines, f"data         {', '.join([*filter(None, numbers), here])}"]


def _where(task: Task) -> str:
    if task.runs_here:
        return "here"
    package = str(task.needs).split("/")[0]
    return f"not here: needs {package} ({_REMEDIES[package]})"


def _record(task: Task) -> dict[str, Any]:
    """One task for a program."""
    here = ENTRIES[task.name].here
    return {
        "name": task.name,
        "dataset": task.name,
        "environment": task.environment,
        **task.sizes._asdict(),
        "reference": task.reference._asdict(),
        "paper": task.paper._asdict() if task.paper else None,
        "preset": task.preset._asdict(),
        "data_here": str(here) if here else None,
        "environment_here": task.runs_here,
        "environment_needs": task.needs,
    }
