"""Checks on arrays and files that come from a user; each failure is a `UserError`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acpo.errors import UserError

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

# float32 rounding of a tanh or of a rescaled action; anything larger is a real scale mismatch.
ACTION_TOLERANCE = 1e-5


def readable_file(path: Path) -> None:
    """Refuse a path that is no file or may not be read, in clearer words than the readers have."""
    # os.path, unlike Path, also answers for an impossible path (one that is too long, say).
    if os.path.isdir(path):
        raise UserError(f"{path.absolute()} is a directory; give the dataset file inside it.")
    if not os.path.exists(path):
        raise UserError(f"File not found: {path.absolute()}. Check the path for a typing error.")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path.absolute()} may not be read by you; change its permissions.")


# Decodes every page of every column and keeps nothing. A number is printed before each file, so
# that the last one tells at which file the process ended.
_DECODE = """
import os, sys
import polars as pl

for number, path in enumerate(sys.stdin.buffer.read().split(b"\\0")):
    print(number, flush=True)
    try:
        rows = pl.scan_parquet(os.fsdecode(path), glob=False)
        rows.select(pl.all().count()).collect(engine="streaming")
    except BaseException as error:
        print(str(error).partition("\\n")[0])
        sys.exit(1)
"""
_decoded: set[tuple[str, int, int]] = set()


def decodable_parquet(*paths: Path) -> None:
    """Refuse Parquet files that cannot be decoded; each is tried once as long as it stays the same.

    A wrong length inside a page can make Polars ask for so much memory that the process is aborted,
    which no caller can catch. So a process of its own, which may die, decodes the files first.
    """
    facts = {path: (str(path), (now := path.stat()).st_size, now.st_mtime_ns) for path in paths}
    new = [path for path in paths if facts[path] not in _decoded]
    if not new:
        return
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _DECODE],
            input=b"\0".join(os.fsencode(path.absolute()) for path in new),
            capture_output=True,
            # The packages of this process, wherever they come from; a backtrace would take long.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "RUST_BACKTRACE": "0",
            },
        )
    except OSError:
        return  # Where no process can be started, the files are read without this.
    said = done.stdout.decode(errors="replace").splitlines()
    if done.returncode and said:
        died = done.returncode < 0
        path = new[int(said[-1 if died else -2])]
        says = f"it ended with {signal.Signals(-done.returncode).name}" if died else said[-1]
        raise unreadable(path, "Parquet", says)
    _decoded.update(facts.values())


def unreadable(source: object, kind: str, says: object) -> UserError:
    """What is said of a file that its reader does not take."""
    return UserError(
        f"{source} cannot be read as {kind}: it is not such a file, or it is damaged. Fetch or "
        f"write it again. (The reader says: {says})"
    )


def required_keys(source: str, required: Collection[str], found: Collection[str]) -> None:
    missing = [key for key in required if key not in found]
    if missing:
        raise UserError(
            f"{source}: no array {_listed(missing)}. The file has {_listed(sorted(found))}; "
            f"it needs {_listed(required)}."
        )


def matrix(source: str, field: str, values: Any) -> FloatArray:
    """`values` as float32 [N, columns]; the same memory where it already is that."""
    array = _numeric(source, field, values)
    if array.ndim == 1:
        raise UserError(
            f"{source}: '{field}' is one-dimensional, shape {array.shape}; with one number per "
            "row, reshape to (N, 1)."
        )
    if array.ndim != 2 or array.shape[1] == 0:
        raise UserError(
            f"{source}: '{field}' has shape {array.shape}; reshape to (N, columns), one flat row "
            "of numbers per step."
        )
    return _float32(array)


def vector(source: str, field: str, values: Any) -> FloatArray:
    """`values` as float32 [N]; shape [N, 1] is accepted."""
    return _float32(_squeezed(source, field, values))


def flags(source: str, first: int, field: str, values: Any) -> BoolArray:
    """`values` as bool [N]; numbers are accepted when they are 0 or 1.

    Here and below `first` is the source's row at which the values begin.
    """
    array = _squeezed(source, field, values)
    if array.dtype == np.bool_ or not len(array):
        return array.astype(np.bool_, copy=False)
    finite(source, first, field, array)
    bad = (array != 0) & (array != 1)
    if bad.any():
        row = int(bad.argmax())
        raise UserError(
            f"{source}: '{field}' is {array[row]:g} at row {first + row}; it must be a boolean "
            "array, or numbers that are 0 or 1."
        )
    return array.astype(np.bool_)


def finite(source: str, first: int, field: str, array: NDArray[Any]) -> None:
    """Refuse NaN and infinity. NaN survives min and max, so no mask is made for good data."""
    if not array.size or (np.isfinite(array.min()) and np.isfinite(array.max())):
        return
    bad = ~np.isfinite(array)
    place = np.unravel_index(int(bad.argmax()), bad.shape)
    column = f", column {place[1]}" if array.ndim == 2 else ""
    raise UserError(
        f"{source}: '{field}' is {array[place]} at row {first + place[0]}{column}; {bad.sum():,} "
        f"of its {bad.size:,} values are NaN, infinite or beyond float32. Repair these "
        "rows or remove their episodes."
    )


def same_length(source: str, lengths: dict[str, int]) -> None:
    """The first field of `lengths` is the one the others must match."""
    first, *others = lengths
    for field in others:
        if lengths[field] != lengths[first]:
            raise UserError(
                f"{source}: '{field}' has {lengths[field]:,} rows but '{first}' has "
                f"{lengths[first]:,}; every array needs one row per step."
            )


def unit_range(source: str, first: int, field: str, actions: FloatArray) -> FloatArray:
    """Actions within [-1, 1]; rounding beyond it is clipped, on a copy."""
    if not actions.size or (actions.min() >= -1 and actions.max() <= 1):
        return actions
    low, high = column_range(actions)
    size = np.maximum(high, -low)
    worst = int(size.argmax())
    limit = np.float32(1 + ACTION_TOLERANCE)
    if size[worst] <= limit:
        return np.clip(actions, -1, 1)
    rows: BoolArray = np.any(np.abs(actions) > limit, axis=1)
    raise UserError(
        f"{source}: '{field}' must lie in [-1, 1], but column {worst} ranges over "
        f"[{low[worst]:g}, {high[worst]:g}]; {rows.sum():,} of {len(rows):,} rows are outside, the "
        f"first is row {first + rows.argmax()}. Rescale with a = 2*(a-low)/(high-low)-1, low "
        "and high being the bounds of the action space, or load with scale_actions=True "
        "(--scale-actions), which takes the bounds from the data."
    )


def column_range(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The least and the largest value of each column.

    Many rows are laid side by side first: numpy takes ten times as long down a narrow matrix.
    """
    width, side = matrix.shape[1], 256
    whole = len(matrix) // side * side
    wide = np.ascontiguousarray(matrix[:whole]).reshape(-1, side * width)
    parts = [matrix[whole:]] if whole < len(matrix) or not whole else []
    low, high = ([getattr(part, f)(axis=0) for part in parts] for f in ("min", "max"))
    if whole:
        low.append(wide.min(axis=0).reshape(side, width).min(axis=0))
        high.append(wide.max(axis=0).reshape(side, width).max(axis=0))
    return np.min(low, axis=0), np.max(high, axis=0)


def varying_columns(
    source: str, field: str, low: FloatArray, high: FloatArray, names: Sequence[str] = ()
) -> None:
    """Refuse columns whose least and largest values are equal."""
    constant = np.flatnonzero(low == high)
    if len(constant):
        shown = _listed([names[i] for i in constant.tolist()]) if len(names) else _ranges(constant)
        raise UserError(
            f"{source}: '{field}' has {len(constant)} of {len(low)} columns that "
            f"never change: {shown}. Drop them or, if they are meant to be constant "
            '(a fixed goal, say), load with constant_columns="keep" '
            "(--constant-columns keep)."
        )


def _numeric(source: str, field: str, values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"{source}: '{field}' holds values of type {array.dtype}, not real numbers; store it "
            "as a float32 array."
        )
    return array


def _squeezed(source: str, field: str, values: Any) -> NDArray[Any]:
    array = _numeric(source, field, values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise UserError(
            f"{source}: '{field}' has shape {array.shape}; it needs one number per row, reshape "
            "to (N,)."
        )
    return array


def _float32(array: NDArray[Any]) -> FloatArray:
    # A float64 too large for float32 becomes infinite here, and `finite` reports it.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def _listed(names: Collection[str], limit: int = 12) -> str:
    shown = [f"'{name}'" for name in list(names)[:limit]]
    if len(names) > limit:
        shown.append(f"and {len(names) - limit} more")
    return ", ".join(shown) or "no arrays"


def _ranges(columns: NDArray[np.intp]) -> str:
    """[2, 10, 17, 18] as "2, 10, 17-18"."""
    runs = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
