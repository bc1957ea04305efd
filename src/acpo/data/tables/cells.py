"""What stands in a table's cells: numbers, times and text, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from acpo.data import checks
from acpo.errors import UserError

if TYPE_CHECKING:
    import polars as pl

Kind = Literal["number", "flag", "time", "text"]
MOST_CATEGORIES = 50


def is_text(dtype: pl.DataType) -> bool:
    import polars as pl

    return dtype in (pl.String, pl.Categorical, pl.Enum)


def number(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The column as float64; null where its text is no number."""
    import polars as pl

    if not is_text(dtype):
        return column.cast(pl.Float64)
    # Text where numbers belong has often just a space beside them.
    text = column.cast(pl.String).str.strip_chars()
    truth = text.str.to_lowercase().replace_strict({"true": 1.0, "false": 0.0}, default=None)
    return pl.coalesce(text.cast(pl.Float64, strict=False), truth)


def text(column: pl.Expr) -> pl.Expr:
    """The column as text, null where a number is missing: pandas writes that as NaN."""
    import polars as pl

    written = column.cast(pl.String)
    return pl.when(written.str.strip_chars().str.to_lowercase() != "nan").then(written)


def seconds(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The column as float64: seconds of a date or a duration, a number as it stands."""
    import polars as pl

    if dtype in (pl.Datetime, pl.Date):
        return column.cast(pl.Datetime("us")).dt.epoch("us") / 1e6
    if dtype == pl.Duration:
        return column.dt.total_microseconds() / 1e6
    if dtype == pl.Time:
        return column.cast(pl.Int64) / 1e9
    if not is_text(dtype):
        return column.cast(pl.Float64)
    text = column.cast(pl.String).str.strip_chars()
    # 03/04/2026 is a day of March to some and of April to others.
    plain = pl.when(~text.str.contains(r"^\d{1,2}[/-]\d{1,2}[/-]\d")).then(text)
    date = plain.str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
    return pl.coalesce(text.cast(pl.Float64, strict=False), date.dt.epoch("us") / 1e6)


def sound(column: pl.Expr, dtype: pl.DataType, kind: Kind) -> pl.Expr:
    """A quick look: whether nothing can be wrong in a column. If false, `problem` will tell."""
    import polars as pl

    if kind == "number":
        plain = column.cast(pl.String) if is_text(dtype) else column
        good = plain.cast(pl.Float64, strict=False).cast(pl.Float32).is_finite()
    elif kind == "text":
        good = text(column).is_not_null()
    else:
        good = pl.lit(False)
    return good.fill_null(False).all()


def problem(column: pl.Series, kind: Kind) -> str | None:
    """The first thing that is wrong in a column, as the rest of a sentence; None if nothing is."""
    import polars as pl

    name, frame = f"column '{column.name}'", column.to_frame()
    this, values = pl.col(column.name), column
    if kind != "text":
        read = seconds if kind == "time" else number
        try:
            values = frame.select(read(this, column.dtype)).to_series()
        except pl.exceptions.PolarsError:  # a time of which no value can be read
            values = pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    missing = column.is_null()
    if kind == "text":
        missing |= frame.select(text(this)).to_series().is_null()
    elif values.dtype.is_float():
        missing |= values.is_nan().fill_null(False)
    if missing.any():
        return (
            f"{name} has no value {_first(missing)} are missing. Fill them in, or leave the column "
            "out; to take single rows out would join rows that do not follow each other."
        )
    if kind == "text":
        return None
    strange = values.is_null()
    if strange.any():
        shown = f"('{column[int(strange.arg_max() or 0)]}' {_first(strange)} cannot be read)"
        if kind == "time":
            return (
                f"{name} is no time {shown}. Write numbers, or dates such as 2026-05-31T14:00:00."
            )
        return (
            f"{name} holds text {shown}. Correct these values; text can only stand in the "
            "observation, and a column of categories that look like numbers is named with "
            "--categorical."
        )
    infinite = ~values.cast(pl.Float32).is_finite()
    if kind != "time" and infinite.any():
        return f"{name} is infinite or too large {_first(infinite)} are. Correct these values."
    other = ~values.is_in([0.0, 1.0])
    if kind == "flag" and other.any():
        at = int(other.arg_max() or 0)
        return f"{name} is {column[at]} {_first(other)} are not 0, 1, true or false. Correct them."
    return None


def _first(bad: pl.Series) -> str:
    return f"at row {bad.arg_max()}; {bad.sum():,} of its {len(bad):,} values"


class Texts:
    """The values of a column of text."""

    def __init__(self) -> None:
        self.rows = self.numbers = 0
        self.seen: set[str] = set()

    def add(self, column: pl.Series) -> None:
        import polars as pl

        numbers = column.to_frame().select(number(pl.col(column.name), column.dtype))
        self.rows += len(column)
        self.numbers += len(column) - numbers.to_series().null_count()
        if len(self.seen) <= MOST_CATEGORIES:
            self.seen |= {value for value in column.unique().to_list() if value is not None}

    @property
    def mostly_numbers(self) -> bool:
        return 2 * self.numbers > self.rows

    def categories(self, where: str, name: str) -> tuple[str, ...]:
        if len(self.seen) > MOST_CATEGORIES:
            raise UserError(
                f"{where}: column '{name}' holds more than {MOST_CATEGORIES} different texts, too "
                "many for categories. Leave it out of the observation, or group its values."
            )
        return tuple(sorted(self.seen))


def as_polars(where: str, table: Any) -> pl.LazyFrame:
    """A Polars or pandas frame, or arrays by name, of which a matrix gives name_0, name_1, ….

    Without Arrow, which pandas and Polars would otherwise exchange frames by.
    """
    import polars as pl

    if isinstance(table, pl.LazyFrame | pl.DataFrame):
        return table.lazy()
    if type(table).__module__.partition(".")[0] == "pandas":
        found = {str(name): _from_pandas(column) for name, column in table.items()}
        if len(found) < table.shape[1]:
            raise UserError(f"{where}: two columns have the same name; rename one of them.")
    elif isinstance(table, Mapping):
        found = columns(where, table)
    else:
        raise UserError(
            f"{where}: a {type(table).__name__} is no table; give a pandas or Polars frame, or "
            "arrays by name."
        )
    return pl.LazyFrame([_series(where, name, array) for name, array in found.items()])


def columns(where: str, arrays: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    """The columns of arrays by name; those of a matrix are called name_0, name_1, …."""
    found: dict[str, np.ndarray] = {}
    for name, values in arrays.items():
        array = np.asarray(values)
        if array.ndim not in (1, 2):
            raise UserError(
                f"{where}: '{name}' has shape {array.shape}; it needs one row per step, so "
                "reshape to (N,) or (N, columns)."
            )
        parts = {str(name): array}
        if array.ndim == 2:
            parts = {f"{name}_{i}": array[:, i] for i in range(array.shape[1])}
        if doubled := parts.keys() & found.keys():
            raise UserError(f"{where}: two columns are called '{min(doubled)}'; rename one.")
        found |= parts
    checks.same_length(where, {name: len(array) for name, array in found.items()} or {"": 0})
    return found


def schema(where: str, arrays: Mapping[str, np.ndarray]) -> dict[str, pl.DataType]:
    """The types that `as_polars` gives to the columns of these arrays."""
    found = columns(where, arrays)
    return {name: _series(where, name, array[:0]).dtype for name, array in found.items()}


def _from_pandas(column: Any) -> np.ndarray:
    dtype = column.dtype
    if getattr(dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    elif not isinstance(dtype, np.dtype):
        if dtype.kind in "iufb":  # with pandas' own mark for a missing value
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        column = column.astype(object)
    if column.dtype == object:
        column = column.where(column.notna(), None)
    return column.to_numpy()


def _series(where: str, name: str, array: np.ndarray) -> pl.Series:
    import polars as pl

    match array.dtype.kind:
        case "b" | "i" | "u":
            return pl.Series(name, array)
        case "f":
            narrow = array.dtype.itemsize in (4, 8)
            return pl.Series(name, array if narrow else array.astype(np.float64))
        case "M" | "m":
            return pl.Series(name, array.astype(f"{array.dtype.kind}8[us]"))
        case "U" | "O":
            texts = [None if value is None else str(value) for value in array.tolist()]
            return pl.Series(name, texts, dtype=pl.String)
    raise UserError(
        f"{where}: '{name}' holds values of type {array.dtype}; store it as numbers or text."
    )
