"""The rows of a table's parts, read and put in order; what they mean is `tables`' to know."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acpo.data import checks
from acpo.data.source import BLOCK_ROWS
from acpo.data.tables import cells
from acpo.data.tables.columns import Columns
from acpo.errors import UserError

if TYPE_CHECKING:
    import polars as pl

# A table that will be in memory anyway is parsed once and held, up to so many numbers (256 MB). Any
# other is parsed again for each pass over it, and memory does not grow with it.
HELD_NUMBERS = 2**26
CSV_PIECE = 2**20


@dataclass(frozen=True)
class Part:
    """One file, or one frame.

    Args:
        where: What messages call it.
        kind: Its format, for messages.
        scan: Gives its rows, columns being read as the types given.
        typed: Its columns have types of their own, and `scan` does not mind those given.
        count: The number of rows, where it is known.
        blocks: Gives some columns, at most so many rows at a time, where `scan` cannot do so
            without reading ahead.
    """

    where: str
    kind: str
    scan: Callable[[Mapping[str, Any]], pl.LazyFrame]
    typed: bool
    count: int | None = None
    blocks: Callable[[Sequence[str], int], Iterator[pl.DataFrame]] | None = None

    def schema(self) -> Mapping[str, pl.DataType]:
        with reading(self):
            return self.scan({}).collect_schema()


@contextlib.contextmanager
def reading(part: Part, explain: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Turn what Polars raises into a sentence; `explain` may raise a better one before."""
    try:
        yield
    except failures() as error:
        explain()
        says = str(error).strip().partition("\n")[0]
        raise checks.unreadable(part.where, part.kind, says) from error


def failures() -> tuple[type[BaseException], ...]:
    """What Polars raises for a damaged file; its panic is no Exception."""
    import polars as pl

    return (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


class Rows:
    """The columns in use, under names of our own.

    These are o0, o1, … of the observation, n0, … of the next observation, a0, … of the action
    (float32), r0, … for the reward (float64), terminal, timeout (float32), id, and time (float64,
    seconds). A column of the observation that holds text stays text here.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        schemas: Sequence[Mapping[str, pl.DataType]],
        columns: Columns,
        text: set[str],
    ) -> None:
        self.parts, self.columns, self.text = parts, columns, text
        both = list(zip(parts, schemas, strict=True))
        self._types = [self._overrides(part, schema) for part, schema in both]
        self._made = [
            self._columns({**schema, **types})
            for (_, schema), types in zip(both, self._types, strict=True)
        ]
        self._rows: list[pl.LazyFrame | pl.DataFrame] = [
            part.scan(types).select(**made)
            for part, types, made in zip(parts, self._types, self._made, strict=True)
        ]

    def frames(
        self, number: int, rows: int | None, columns: Sequence[str] | None = None
    ) -> Iterator[pl.DataFrame]:
        """The rows of a part, at most so many at a time; never an empty frame."""
        import polars as pl

        chosen = self._rows[number]
        if columns is not None:
            chosen = chosen.select(columns)
        frames: Iterable[pl.DataFrame]
        with self._reading(number):
            if rows is None:
                frames = [chosen.lazy().collect()]
            elif isinstance(chosen, pl.DataFrame):
                frames = chosen.iter_slices(rows)
            elif (blocks := self.parts[number].blocks) is not None:
                made = {name: self._made[number][name] for name in columns or self._made[number]}
                needed = dict.fromkeys(n for cell in made.values() for n in cell.meta.root_names())
                frames = (frame.select(**made) for frame in blocks(list(needed), rows))
            else:
                # Polars reads a CSV several pieces ahead, by default 300 MB in all.
                os.environ.setdefault("POLARS_CSV_CHUNK_SIZE", str(CSV_PIECE))
                # Unlike slices of a scan, of which each would parse a CSV from its beginning.
                frames = chosen.collect_batches(chunk_size=rows)
            for frame in frames:
                if len(frame):
                    yield frame

    def survey(self, number: int, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """All rows of a part once: together if they are held anyway, else in blocks."""
        held = not hasattr(self._rows[number], "collect_batches")
        return self.frames(number, None if held else BLOCK_ROWS, columns)

    def hold_if_small(self) -> None:
        import polars as pl

        numbers = 0
        for number, rows in enumerate(self._rows):
            with self._reading(number):
                count = self.parts[number].count
                if count is None:
                    count = rows.lazy().select(pl.len()).collect().item()
                numbers += count * len(self._made[number])
        if numbers <= HELD_NUMBERS:
            for number, rows in enumerate(self._rows):
                with self._reading(number):
                    self._rows[number] = rows.lazy().collect()

    def explain(self) -> None:
        """Raise the first value that explains why reading failed, as it stands in its file."""
        import polars as pl

        c = self.columns
        kinds: dict[str, cells.Kind] = dict.fromkeys(c.used, "number")
        kinds |= dict.fromkeys(self.text, "text")
        kinds |= {name: "flag" for name in (c.terminal, c.timeout) if name}
        kinds |= {c.time: "time"} if c.time else {}
        kinds |= {c.episode: "text"} if c.episode else {}
        for part in self.parts:
            for name in self._suspects(part, kinds):
                problem = None
                with contextlib.suppress(*failures()):
                    column = part.scan({name: pl.String()}).select(name).collect().to_series()
                    problem = cells.problem(column, kinds[name])
                if problem:
                    raise UserError(f"{part.where}: {problem}")

    def _suspects(self, part: Part, kinds: Mapping[str, cells.Kind]) -> Iterable[str]:
        """Columns to look through, found in one pass, as each alone would take one."""
        import polars as pl

        with contextlib.suppress(*failures()):
            rows = part.scan(dict.fromkeys(kinds, pl.String()))
            types = rows.collect_schema()
            sound = {n: cells.sound(pl.col(n), types[n], kind) for n, kind in kinds.items()}
            found = rows.select(**sound).collect().row(0, named=True)
            return [name for name in kinds if not found[name]]
        return kinds

    def _reading(self, number: int) -> contextlib.AbstractContextManager[None]:
        return reading(self.parts[number], self.explain)

    def _overrides(self, part: Part, schema: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        """What looks like an integer in a CSV's first rows need not do so in the others."""
        import polars as pl

        types: dict[str, pl.DataType] = {}
        for name in () if part.typed else self.columns.used:
            if name == self.columns.episode or name in self.text:
                types[name] = pl.String()
            elif schema[name].is_numeric():
                types[name] = pl.Float64()
        return types

    def _columns(self, schema: Mapping[str, pl.DataType]) -> dict[str, pl.Expr]:
        """Our columns, made from those of a part; row by row."""
        import polars as pl

        c = self.columns

        def number(name: str, dtype: Any) -> pl.Expr:
            return cells.number(pl.col(name), schema[name]).cast(dtype)

        made: dict[str, pl.Expr] = {}
        for prefix, names in (("o", c.observation), ("n", c.next_observation)):
            for i, name in enumerate(names):
                text = name in self.text
                cell = cells.text(pl.col(name)) if text else number(name, pl.Float32)
                made[f"{prefix}{i}"] = cell
        made |= {f"a{i}": number(name, pl.Float32) for i, name in enumerate(c.action)}
        made |= {f"r{i}": number(name, pl.Float64) for i, name in enumerate(c.reward_from)}
        flags = {"terminal": c.terminal, "timeout": c.timeout}
        made |= {flag: number(name, pl.Float32) for flag, name in flags.items() if name}
        if c.time:
            made["time"] = cells.seconds(pl.col(c.time), schema[c.time]).fill_nan(None)
        if c.episode:
            ids = pl.col(c.episode)
            made["id"] = ids.fill_nan(None) if schema[c.episode].is_float() else ids
        return made
