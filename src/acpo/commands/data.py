"""acpo data: what there is, what is in it, what is wrong with it, and in another format."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from acpo.data import catalogue, inspect, problems
from acpo.data.dataset import Dataset
from acpo.data.options import DataOptions
from acpo.data.registry import DEFAULT, load, stream
from acpo.errors import UserError
from acpo.files import write_json

USAGE = """usage: acpo data list | info DATASET | check DATASET | convert DATASET OUT

  list     everything known by name: size, score of the data, whether it is here
  info     rows, episodes, returns, ranges of a dataset; --plot FILE draws it
  check    every problem of a dataset, worst first; exit code 2 if training on it would be wrong
  convert  write a dataset as D4RL HDF5 (.hdf5), Parquet (.parquet), our store (.acpo) or
           a Minari dataset (minari:ID)

acpo data COMMAND --help tells more."""


Options = Annotated[DataOptions, tyro.conf.arg(name="")]


@dataclass(frozen=True)
class ListArguments:
    """Everything known by name, with size, score of the data, and whether it is here."""

    json: Path | None = None
    """Also write the list to this file."""


@dataclass(frozen=True)
class InfoArguments:
    """Rows, episodes, lengths, returns, dimensions and ranges of a dataset."""

    dataset: tyro.conf.Positional[str] = DEFAULT
    """A name, a file or a folder."""
    plot: Path | None = None
    """Draw returns, lengths, ranges and coverage into this picture (needs acpo[plot])."""
    json: Path | None = None
    """Also write the numbers to this file."""
    data: Options = field(default_factory=DataOptions)


@dataclass(frozen=True)
class CheckArguments:
    """Every problem found, worst first, with row numbers and what to do."""

    dataset: tyro.conf.Positional[str] = DEFAULT
    """A name, a file or a folder."""
    json: Path | None = None
    """Also write the problems to this file."""
    data: Options = field(default_factory=DataOptions)


@dataclass(frozen=True)
class ConvertArguments:
    """Write a dataset in another format, a block at a time."""

    dataset: tyro.conf.Positional[str]
    """A name, a file or a folder."""
    out: tyro.conf.Positional[str]
    """X.hdf5 (D4RL's layout), X.parquet, X.acpo (our store) or minari:ID."""
    overwrite: bool = False
    """Replace an existing target."""
    data: Options = field(default_factory=DataOptions)


def main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    commands = {"list": _list, "info": _info, "check": _check, "convert": _convert}
    if words[0] not in commands:
        raise UserError(f"There is no 'acpo data {words[0]}'; there are {', '.join(commands)}.")
    return commands[words[0]](words[1:])


def _list(words: list[str]) -> int:
    arguments = tyro.cli(ListArguments, prog="acpo data list", args=words)
    rows = [_scored(row) for row in catalogue.listing()]
    for line in catalogue.describe(rows):
        print(line)
    if arguments.json:
        listed = [{**row._asdict(), "path": str(row.path or "") or None} for row in rows]
        write_json(arguments.json, {"datasets": listed})
    return 0


def _scored(row: catalogue.Row) -> catalogue.Row:
    """With the score of the data where its mean return is known."""
    from acpo.tasks import reference

    known = reference(catalogue.ENTRIES[row.name].environment)
    if known is None or row.mean_return is None:
        return row
    return row._replace(score=known.score(row.mean_return))


def _info(words: list[str]) -> int:
    arguments = tyro.cli(InfoArguments, prog="acpo data info", args=words)
    data = load(arguments.dataset, arguments.data)
    found = inspect.facts(data, _score(data))
    for line in inspect.describe(found):
        print(line)
    if arguments.plot:
        from acpo.report.data import draw_dataset

        draw_dataset(data, arguments.plot)
        print(f"drawn in {arguments.plot}")
    if arguments.json:
        write_json(arguments.json, found)
    return 0


def _score(data: Dataset) -> float | None:
    from acpo.tasks import reference

    known = reference(data.environment, data.name)
    return known and float(known.score(catalogue.counted_return(data)))


def _check(words: list[str]) -> int:
    arguments = tyro.cli(CheckArguments, prog="acpo data check", args=words)
    # Constant columns are one problem among others here, not a reason to look no further.
    data = load(arguments.dataset, replace(arguments.data, constant_columns="keep"))
    found = problems.find(data)
    for line in problems.describe(found):
        print(line)
    if arguments.json:
        write_json(arguments.json, {"problems": [vars(problem) for problem in found]})
    return 2 if problems.fatal(found) else 0


def _convert(words: list[str]) -> int:
    from acpo.data.convert import convert

    arguments = tyro.cli(ConvertArguments, prog="acpo data convert", args=words)
    found = stream(arguments.dataset, arguments.data)
    target = convert(found, os.path.expanduser(arguments.out), overwrite=arguments.overwrite)
    print(f"written to {target}")
    return 0
