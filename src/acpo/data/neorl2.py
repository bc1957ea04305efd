"""NPZ files with NeoRL2's keys or D4RL's, and NeoRL2's Parquet files."""

from __future__ import annotations

import contextlib
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from acpo.data import checks, d4rl
from acpo.data.dataset import Dataset
from acpo.data.options import ConstantColumns
from acpo.data.pairing import Steps
from acpo.data.source import Source, from_steps
from acpo.errors import UserError

# `done` marks only true ends: in the official files it never falls on the last step of the
# horizon, where `truncated` stands instead.
FIELD_NAMES = {
    "observations": "obs",
    "actions": "action",
    "rewards": "reward",
    "terminals": "done",
    "timeouts": "truncated",
    "next_observations": "next_obs",
}

# What zipfile, zlib and numpy raise, depending on the byte that is wrong.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError),
    *(NotImplementedError, OverflowError, MemoryError, struct.error),
)

# The hub's Parquet has a column per number: obs_0, obs_1, … . Its description spells fields in two
# ways and leaves `truncated` out, so both are taken and `truncated` may be absent.
_PARQUET_NAMES = {
    "observations": ("obs", "observations"),
    "actions": ("action", "actions", "act"),
    "rewards": ("reward", "rewards"),
    "terminals": ("done", "terminals"),
    "timeouts": ("truncated", "timeouts"),
    "next_observations": ("next_obs", "next_observations"),
}


def load(path: str | os.PathLike[str], *, constant_columns: ConstantColumns = "refuse") -> Dataset:
    """Load an NPZ with NeoRL2's keys, or with D4RL's where it has `observations`.

    Raises:
        UserError: if the file cannot be read, lacks a key, or its contents are refused.
    """
    return open_file(Path(path)).read(keep_constant=constant_columns == "keep")


def open_file(path: Path) -> Source:
    """An NPZ with NeoRL2's keys or D4RL's. Its arrays are compressed whole, so it is one block."""
    checks.readable_file(path)
    arrays, field_names = _read(path)
    return from_steps(Steps(**arrays), path.stem, str(path), field_names=field_names)


def is_table(path: Path) -> bool:
    """Whether an NPZ has other keys than these layouts, so that its columns have to be chosen."""
    with contextlib.suppress(*_DAMAGE), zipfile.ZipFile(path) as archive:
        found = {Path(name).stem for name in archive.namelist()}
        return not found & {"observations", "actions", "obs", "action", "next_obs"}
    return False


def open_parquet(path: Path) -> Source:
    """NeoRL2's Parquet: a column per number (obs_0, obs_1, …), or one of lists (obs).

    Without `truncated`, an episode ends where the next row does not go on from `next_obs`.
    """
    import polars as pl

    checks.readable_file(path)
    arrays: dict[str, Any] = {}
    names = dict(FIELD_NAMES)
    try:
        table = pl.read_parquet(path)
        for field, spellings in _PARQUET_NAMES.items():
            for name in spellings:
                if field not in arrays and (array := _columns(table, name)) is not None:
                    arrays[field], names[field] = array, name
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(
            f"{path} cannot be read as Parquet: it is not such a file, or it was cut short. "
            f"Fetch or write it again. (The reader says: {error})"
        ) from error
    required = [name for field, name in names.items() if field != "timeouts"]
    found = [names[field] for field in arrays]
    checks.required_keys(str(path), required, {*found, *table.columns})
    here, following = arrays["observations"], arrays["next_observations"]
    if "timeouts" not in arrays and here.ndim == 2 and here.shape == following.shape:
        arrays["timeouts"] = np.ones(len(here), bool)
        arrays["timeouts"][:-1] = np.any(following[:-1] != here[1:], axis=1)
    return from_steps(Steps(**arrays), path.stem, str(path), field_names=names)


def _columns(table: Any, name: str) -> Any:
    """The columns name_0, name_1, … side by side, or the numbers or lists of the column `name`."""
    import polars as pl

    if name in table.columns:
        column = table[name]
        if column.dtype == pl.List:
            column = column.list.to_array(column.list.len().max() or 0)
        return column.to_numpy()
    numbered = [f"{name}_{i}" for i in range(len(table.columns))]
    present = [column for column in numbered if column in table.columns]
    return table.select(present).to_numpy() if present else None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        # np.load would take any other file for a pickle and say so, misleadingly.
        zipfile.ZipFile(path).close()
        with np.load(path, allow_pickle=False) as archive:
            if "observations" in archive:
                names = {key: key for key in (*d4rl.REQUIRED, *d4rl.OPTIONAL)}
                required: tuple[str, ...] = d4rl.REQUIRED
            else:
                names = FIELD_NAMES
                required = tuple(FIELD_NAMES.values())
            checks.required_keys(str(path), required, archive.files)
            arrays = {
                field: _array(path, archive, key) for field, key in names.items() if key in archive
            }
    except _DAMAGE as error:
        raise UserError(
            f"{path} cannot be read as NPZ: it is not such a file, or it was cut short. "
            f"Fetch or write it again. (The reader says: {error})"
        ) from error
    return arrays, names


def _array(path: Path, archive: Any, key: str) -> Any:
    try:
        return archive[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise UserError(
            f"{path}: '{key}' is an array of Python objects, stored as a pickle. Loading a pickle "
            "can run any code, so it is refused; store it as a plain array of numbers."
        ) from error
