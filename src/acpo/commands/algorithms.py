"""acpo algorithms: the methods by name, what they constrain, and their authors' settings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from acpo import bench
from acpo.algorithms import ALGORITHMS, about, choose
from acpo.data.download import home
from acpo.files import read_json, write_json

WIDTH = 100
# Updates per second by name: as we measured them, and what acpo bench speed found here.
MEASURED = Path(bench.__file__).with_name("measured.json")
LEGEND = """
updates/s: last measured at Hopper's sizes, layers of 256 256 and batches of 256; acpo bench speed
--algorithm NAME measures here. acpo algorithms NAME tells more; acpo train TASK --algorithm NAME
trains."""


@dataclass(frozen=True)
class AlgorithmsArguments:
    """Every method: its paper, what it constrains, its networks, speed and settings."""

    name: tyro.conf.Positional[str | None] = None
    """Show all that is known of this method."""
    json: Path | None = None
    """Also write it to this file."""


def main(words: list[str]) -> int:
    arguments = tyro.cli(AlgorithmsArguments, prog="acpo algorithms", args=words)
    name = arguments.name
    if name is not None:
        choose(name)  # refuses what there is not
    speeds = _speeds()
    records = [_record(one, speeds.get(one)) for one in ([name] if name else ALGORITHMS)]
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(width=WIDTH)
    if name is None:
        console.print(_table(records))
    for line in [LEGEND] if name is None else _facts(records[0]):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if arguments.json:
        write_json(arguments.json, {"algorithms": records})
    return 0


def _speeds() -> dict[str, float]:
    """Updates per second by name, as last measured: here, or else by us."""
    files = [file for file in (MEASURED, home() / "speed.json") if file.exists()]
    return {name: rate for file in files for name, rate in read_json(file).items()}


def _record(name: str, speed: float | None) -> dict[str, Any]:
    """One method for a program."""
    algorithm = ALGORITHMS[name]
    return {
        "name": name,
        **about(name)._asdict(),
        "objective": (inspect.getdoc(type(algorithm)) or "").split("\n\n")[0],
        "updates_per_second": speed,
        "defaults": dataclasses.asdict(algorithm),
        "settings": algorithm.settings,
    }


def _table(records: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("name", no_wrap=True)
    for title in ("paper", "year", "family", "constrains", "networks"):
        table.add_column(title, no_wrap=title == "year")
    table.add_column("updates/s", no_wrap=True, justify="right")
    for record in records:
        # The authors say enough here; the title stands with the rest under the method's name.
        authors = re.search(r"\(([^()]*)\)$", record["paper"])
        speed = record["updates_per_second"]
        cells = (
            record["name"],
            authors[1] if authors else record["paper"],
            str(record["year"]),
            *(record[title] for title in ("family", "constrains", "networks")),
            f"{speed:.0f}" if speed is not None else "",
        )
        table.add_row(*map(Text, cells))  # as text, for E[…] is no markup
    return table


def _facts(record: dict[str, Any]) -> Iterator[str]:
    """One method for a person, line by line."""
    speed = record["updates_per_second"]
    yield from _entry("method", record["name"])
    yield from _entry("paper", f"{record['paper']}, {record['year']}")
    yield from _entry("objective", record["objective"])
    for title in ("family", "constrains", "networks"):
        yield from _entry(title, record[title])
    if speed is not None:
        yield from _entry("speed", f"{speed:.0f} updates/s at Hopper's sizes when last measured")
    yield from _entry("source", record["source"])
    defaults = dict(record["defaults"])
    if "reward_scale" in defaults:  # None has a meaning of its own
        defaults["reward_scale"] = str(defaults["reward_scale"])
    yield from _entry("defaults", ", ".join(_flags(defaults, skip=None)))
    # Suites and tasks with the same settings share a line.
    groups: dict[str, list[str]] = {}
    for where, fields in record["settings"].items():
        groups.setdefault(", ".join(_flags(fields)), []).append(where)
    title = "settings"
    for shown, places in groups.items():
        yield from _entry(title, f"{', '.join(places)}: {shown or 'the defaults'}")
        title = ""
    name = record["name"]
    yield from _entry("train", f"acpo train TASK --algorithm {name}; its flags: add --help")


def _entry(title: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{title:13}",
        subsequent_indent=13 * " ",
        break_on_hyphens=False,
    )


def _flags(fields: dict[str, Any], prefix: str = "", skip: Any = ...) -> Iterator[str]:
    """Fields and values, spelt like flags, without those of the value `skip`."""
    for name, value in fields.items():
        flag = prefix + name.replace("_", "-")
        if isinstance(value, dict):
            yield from _flags(value, f"{flag}.", skip)
        elif value is not skip:
            words = value if isinstance(value, list | tuple) else [value]
            yield " ".join([flag, *map(str, words)])
