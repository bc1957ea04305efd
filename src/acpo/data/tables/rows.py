"""The rows of a table's parts, read and put in order; what they mean is `tables`' to know."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from acpo.data.source import BLOCK_ROWS
from acpo.data.tables import cells
from acpo.data.tables.columns import Columns
from acpo.errors import UserError

if TYPE_CHECKING:
    import polars as pl

# Tables up to so many numbers (256 MB) are parsed once and held. A larger one is parsed again for
# each pass over it, and memory does not grow with it.
HELD_NUMBERS = 2**26


@dataclass(frozen=True)
class Part:
    """One file, or one frame.

    Args:
        where: What messages call it.
        kind: Its format, for messages.
        scan: Gives its rows, columns being read as the types given.
        typed: Its columns have types of their own, and `scan` does not mind those given.
    """

    where: str
    kind: str
    scan: Callable[[Mapping[str, Any]], pl.LazyFrame]
    typed: bool

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
        raise unreadable(part.where, part.kind, error) from error


def failures() -> tuple[type[BaseException], ...]:
    """What Polars raises for a damaged file; its panic is no Exception."""
    import polars as pl

    return (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


def unreadable(where: str, kind: str, error: BaseException) -> UserError:
    says = str(error).strip().partition("\n")[0]
    return UserError(
        f"{where} cannot be read as {kind}: it is not such a file, or it is damaged. Fetch or "
        f"write it again. (The reader says: {says})"
    )


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
        self._rows: list[pl.LazyFrame | pl.DataFrame] = [
            self._projected(*both) for both in zip(parts, schemas, strict=True)
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
            else:
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
                width = len(rows.collect_schema())
                numbers += rows.lazy().select(pl.len()).collect().item() * width
        if numbers <= HELD_NUMBERS:
            for number, rows in enumerate(self._rows):
                with self._reading(number):
                    self._rows[number] = rows.lazy().collect()

    def order(self, number: int) -> NDArray[np.float64]:
        """Sort a part if it needs it; gives the times between neighbouring rows of one id.

        Rows are sorted by the first row of their id and by time, for which the part is held in
        memory. A part that is in order is not, only eight bytes of time a row, here.

        Without an id, times that go back to what was there before are those of a clock that was
        set back or begins anew with each episode: sorting would mix what does not belong together,
        so these stay as they are.
        """
        import polars as pl

        fields = [
            f for f, name in (("id", self.columns.episode), ("time", self.columns.time)) if name
        ]
        if not fields:
            return np.zeros(0)
        begun, steps, before = [], [np.zeros(0)], None
        for frame in self.survey(number, fields):
            if sum(frame.null_count().row(0)):
                self.explain()
            changed, step = compared(frame, before)
            begun += [frame["id"].filter(pl.Series(changed))] if "id" in fields else []
            steps.append(step[~changed])
            before = frame.tail(1)
        step = np.concatenate(steps)
        mixed = bool(begun) and (ids := pl.concat(begun)).n_unique() < len(ids)
        back = bool((step < 0).any())
        rows = self._rows[number].lazy()
        with self._reading(number):
            if back and "id" not in fields:
                times = rows.select("time").collect().to_series()
                back = times.n_unique() == len(times)
            if not mixed and not back:
                return step
            rows = rows.with_row_index("row")
            keys = [field for field in fields if field == "time"]
            if "id" in fields:
                rows = rows.with_columns(pl.col("row").min().over("id"))
                keys = ["row", *keys]
            self._rows[number] = rows.sort(keys, maintain_order=True).drop("row").collect()
        return self.order(number)

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

    def _projected(self, part: Part, schema: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        import polars as pl

        c = self.columns
        types: dict[str, Any] = {}
        for name in () if part.typed else c.used:
            # What looks like an integer in a CSV's first rows need not do so in the others.
            if name == c.episode or name in self.text:
                types[name] = pl.String()
            elif schema[name].is_numeric():
                types[name] = pl.Float64()
        schema = {**schema, **types}

        def number(name: str, dtype: Any) -> pl.Expr:
            return cells.number(pl.col(name), schema[name]).cast(dtype)

        made: dict[str, pl.Expr] = {}
        for prefix, names in (("o", c.observation), ("n", c.next_observation)):
            for i, name in enumerate(names):
                text = name in self.text
                cell = pl.col(name).cast(pl.String) if text else number(name, pl.Float32)
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
        return part.scan(types).select(**made)


def compared(
    frame: pl.DataFrame, before: pl.DataFrame | None
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Whether each row has another id than the row before it, and how much later it is.

    Args:
        before: The row before the first; None at the beginning of a part, where the first row
            counts as one with another id, and is NaN later.
    """
    import polars as pl

    both = frame if before is None else pl.concat([before.select(frame.columns), frame])
    changed, step = np.zeros(len(both), dtype=np.bool_), np.full(len(both), np.nan)
    changed[0] = True
    if "id" in both.columns:
        changed[1:] = (both["id"][1:] != both["id"][:-1]).to_numpy()
    if "time" in both.columns:
        step[1:] = np.diff(both["time"].to_numpy())
    return changed[-len(frame) :], step[-len(frame) :]
