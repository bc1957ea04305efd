"""Tables: CSV, TSV and Parquet files, folders of them, frames, and arrays by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from acpo.data import checks, expression
from acpo.data.expression import unknown_name
from acpo.data.features import Features
from acpo.data.options import DataOptions
from acpo.data.pairing import Steps
from acpo.data.source import Source
from acpo.data.tables import archive, cells
from acpo.data.tables.columns import natural, resolve
from acpo.data.tables.order import Keys, Order, reordered
from acpo.data.tables.rows import Part, Rows
from acpo.errors import UserError

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = {".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet"}
# Rows of a CSV by which a column is taken for numbers or for text.
HEAD_ROWS = 1000
USUAL_STEPS_IN_A_GAP = 10


def open_file(path: Path, options: DataOptions, *, hold: bool = False) -> Source:
    """A CSV, TSV or Parquet file, or a folder of one kind of these.

    In a folder each file begins a new episode; files are taken in the natural order of their
    names, and the first one's columns are what the others must have.

    Args:
        hold: The rows will be in memory anyway: unless they are too many, parse them only once.

    Raises:
        UserError: if it cannot be read, or its columns do not say what is needed.
    """
    return _file_table(path, options).source(path.name if path.is_dir() else path.stem, hold)


def open_frame(frame: Any, options: DataOptions, name: str = "table") -> Source:
    """A pandas or Polars frame, or arrays by name, a matrix giving columns name_0, name_1, …."""
    return _frame_table(frame, options, name).source(name, hold=True)


def open_npz(path: Path, options: DataOptions, *, hold: bool = False) -> Source:
    """An NPZ with any keys, each an array of one row per step, as `open_frame` takes them."""
    return _npz_table(path, options).source(path.stem, hold)


def chosen(path_or_frame: Any, options: DataOptions) -> list[str]:
    """Which columns play which part, a line for each, as 'action  u_1, u_2 (guessed)'.

    Of a file only the beginning is read.
    """
    if not isinstance(path_or_frame, str | os.PathLike):
        return _frame_table(path_or_frame, options, "table").columns.lines()
    path = Path(path_or_frame)
    if path.suffix.lower() == ".npz":
        return _npz_table(path, options).columns.lines()
    return _file_table(path, options).columns.lines()


def _file_table(path: Path, options: DataOptions) -> _Table:
    if not path.is_dir():
        return _Table(_parts([path]), options, str(path))
    found = [file for file in path.iterdir() if file.suffix.lower() in SUFFIXES]
    files = sorted((f for f in found if f.name[0] != "."), key=lambda f: natural(f.name))
    kinds = sorted({file.suffix.lower() for file in files})
    if len(kinds) != 1:
        raise UserError(
            f"{path} holds {' and '.join(kinds) + ' files' if kinds else 'no tables'}; a folder "
            f"needs files of one kind, {', '.join(SUFFIXES)}."
        )
    return _Table(_parts(files), options, str(path), folder=True)


def _parts(files: Sequence[Path]) -> list[Part]:
    for file in files:
        checks.readable_file(file)
    checks.decodable_parquet(*(file for file in files if file.suffix.lower() == ".parquet"))
    return [_part(file) for file in files]


def _part(path: Path) -> Part:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{path} is no table; these are {', '.join(SUFFIXES)} files.")

    def scan(types: Mapping[str, Any]) -> pl.LazyFrame:
        import polars as pl

        if suffix == ".parquet":
            return pl.scan_parquet(path, glob=False)
        return pl.scan_csv(
            path,
            separator="\t" if suffix == ".tsv" else ",",
            schema_overrides=dict(types),
            infer_schema_length=HEAD_ROWS,
            glob=False,
        )

    return Part(str(path), SUFFIXES[suffix], scan, typed=suffix == ".parquet")


def _frame_table(frame: Any, options: DataOptions, where: str) -> _Table:
    lazy = cells.as_polars(where, frame)
    return _Table([Part(where, "a table", lambda _: lazy, typed=True)], options, where)


def _npz_table(path: Path, options: DataOptions) -> _Table:
    return _Table([archive.part(path)], options, str(path))


class _Table:
    """Parts with the same columns, one after another; a new part begins a new episode."""

    def __init__(
        self, parts: Sequence[Part], options: DataOptions, location: str, *, folder: bool = False
    ) -> None:
        self.options, self.location, self.folder = options, location, folder
        schemas = [part.schema() for part in parts]
        self.columns = c = resolve(parts[0].where, list(schemas[0]), options, folder=folder)
        for part, schema in zip(parts, schemas, strict=True):
            self._check_types(part.where, schema)
        # Columns of the observation that hold text in any part, and their successors.
        text: set[str] = set()
        for names in zip(c.observation, c.next_observation or c.observation, strict=True):
            types = [schema[name] for name in names for schema in schemas]
            forced = names[0] in c.categorical and not all(str(t) == "Boolean" for t in types)
            if forced or any(map(cells.is_text, types)):
                text |= {*names}
        self.rows = Rows(parts, schemas, c, text)
        self.categories: dict[str, tuple[str, ...]] = {}
        # Of each part: which rows begin an episode, and the rows in order if they must be sorted.
        self.begins: list[NDArray[np.bool_]] = []
        self.orders: list[NDArray[np.intp] | None] = []

    def source(self, name: str, hold: bool) -> Source:
        c = self.columns
        if hold:
            self.rows.hold_if_small()
        low, high = self._survey()
        features = Features(c.observation, self.categories, c.action)
        self.features = features.with_range(self.location, low, high)
        called = {
            "observations": "observation",
            "actions": "action",
            "rewards": c.reward,
            "terminals": c.terminal or "terminal",
            "timeouts": c.timeout or "timeout",
            "next_observations": "next_observation",
        }
        return Source(name, self.location, self.blocks, features=self.features, field_names=called)

    def blocks(self, rows: int | None) -> Iterator[Steps]:
        """Steps in order; a block waits for the next, which tells if its last row ends an episode.

        With None a folder still gives a block per file.
        """
        waiting: Steps | None = None
        for number, begins in enumerate(self.begins):
            first = 0
            for steps in self._ordered(number, rows):
                here = begins[first : first + len(steps.rewards)]
                first += len(here)
                steps.timeouts[:-1] |= here[1:] & ~steps.terminals[:-1]
                if waiting is not None:
                    waiting.timeouts[-1] |= here[0] and not waiting.terminals[-1]
                    yield waiting
                waiting = steps
        if waiting is not None:
            # Where only flags end episodes, one without a flag is not known to have ended.
            if self.folder or self.columns.episode or self.columns.time:
                waiting.timeouts[-1] |= not waiting.terminals[-1]
            yield waiting

    def _ordered(self, number: int, rows: int | None) -> Iterator[Steps]:
        """The rows of a part in order, without the ends that their ids and times tell."""
        frames, order = self.rows.frames(number, rows), self.orders[number]
        if order is None:
            return map(self._steps, frames)
        if rows is None:
            return (self._steps(frame[order]) for frame in frames)
        return reordered(map(self._steps, frames), order, rows)

    def _steps(self, frame: pl.DataFrame) -> Steps:
        c = self.columns
        observations = self._matrix(frame, "o", c.observation)
        following = self._matrix(frame, "n", c.next_observation) if c.next_observation else None
        actions = self._matrix(frame, "a", c.action)
        inputs = {name: frame[f"r{i}"].to_numpy() for i, name in enumerate(c.reward_from)}
        for array in (observations, following, actions, *inputs.values()):
            # NaN survives min and max; a null has become NaN.
            if array is not None and not np.isfinite([array.min(), array.max()]).all():
                self.rows.explain()
        if c.reward in inputs:
            rewards = inputs[c.reward]
        else:
            rewards = expression.evaluate(c.reward, inputs or {"": np.zeros(len(frame))})
        terminals, timeouts = self._flags(frame, "terminal"), self._flags(frame, "timeout")
        scaled = self.features.to_unit_range(actions)
        return Steps(observations, scaled, rewards, terminals, timeouts, following)

    def _matrix(self, frame: pl.DataFrame, prefix: str, names: Sequence[str]) -> NDArray[Any]:
        import polars as pl

        numbers: list[pl.Expr] = []
        for i, name in enumerate(names):
            column = pl.col(f"{prefix}{i}")
            # Categories are known by the observation's column, for its successor too.
            known = self.columns.observation[i] if prefix != "a" else name
            if known in self.categories:
                numbers += [
                    (column == value).cast(pl.Float32).alias(f"{prefix}{i}={value}")
                    for value in self.categories[known]
                ]
            elif frame.schema[f"{prefix}{i}"] == pl.String:
                numbers.append(cells.number(column, pl.String()).cast(pl.Float32))
            else:
                numbers.append(column)
        return frame.select(numbers).to_numpy(order="c")

    def _flags(self, frame: pl.DataFrame, name: str) -> NDArray[np.bool_]:
        if name not in frame.columns:
            return np.zeros(len(frame), dtype=np.bool_)
        values = frame[name].to_numpy()
        if not ((values == 0) | (values == 1)).all():
            self.rows.explain()
        return values == 1

    def _check_types(self, where: str, schema: Mapping[str, pl.DataType]) -> None:
        c = self.columns
        numbers = {*c.observation, *c.action, *c.next_observation, *c.reward_from}
        for name in c.used:
            if name not in schema:
                raise UserError(f"{where}: {unknown_name(name, schema)}")
            dtype = schema[name]
            if dtype.is_nested() or str(dtype) in ("Binary", "Object"):
                raise UserError(
                    f"{where}: column '{name}' holds values of type {dtype}; store one number or "
                    "text per column and row."
                )
            if dtype.is_temporal() and name in numbers - {*c.categorical}:
                raise UserError(
                    f"{where}: column '{name}' holds times ({dtype}), not numbers; store a number "
                    "such as the hour of the day, or leave the column out."
                )

    def _survey(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """What all rows must tell before the first block; gives the least and largest actions."""
        c, rows = self.columns, self.rows
        actions = [f"a{i}" for i in range(len(c.action))]
        texts = {
            f"{prefix}{i}": c.observation[i]
            for prefix, names in (("o", c.observation), ("n", c.next_observation))
            for i, name in enumerate(names)
            if name in rows.text
        }
        values = {name: cells.Texts() for name in texts.values()}
        keys = [key for key, name in (("id", c.episode), ("time", c.time)) if name]
        ends: list[tuple[float, ...]] = []
        orders: list[Order] = []
        for number in range(len(rows.parts)):
            found = Keys()
            for frame in rows.survey(number, [*actions, *texts, *keys]):
                acted = frame.select(actions)
                ends += [acted.min().row(0), acted.max().row(0)]
                for column, name in texts.items():
                    values[name].add(frame[column])
                if any(frame[key].null_count() for key in keys):
                    rows.explain()
                found.add(frame)
            orders.append(found.close())
        if not ends:
            raise UserError(f"{self.location}: the table is empty; it has columns but no rows.")
        bounds = np.array(ends, dtype=np.float64)  # None, of a column without values, is NaN
        if not np.isfinite(bounds).all():
            rows.explain()
        for i, name in enumerate(c.observation):
            if name not in values:
                continue
            if values[name].mostly_numbers and name not in c.categorical:
                # Numbers that were damaged: what is none of them will be found when it is read.
                rows.text -= {name, *c.next_observation[i : i + 1]}
            else:
                self.categories[name] = values[name].categories(self.location, name)
        later = np.concatenate([order.later[order.later > 0] for order in orders])
        usual = float(np.median(later)) if len(later) else np.inf
        gap = self.options.gap or USUAL_STEPS_IN_A_GAP * usual
        for changed, step, in_order in orders:
            self.begins.append(changed | (step < 0) | (step > gap))
            self.orders.append(in_order)
        return bounds.min(axis=0), bounds.max(axis=0)
