"""NPZ files with NeoRL2's keys or D4RL's, and NeoRL2's Parquet files."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from acpo.data import checks, d4rl, npz
from acpo.data.dataset import Dataset
from acpo.data.options import ConstantColumns
from acpo.data.pairing import Steps
from acpo.data.source import Source

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
    """An NPZ with NeoRL2's keys or D4RL's."""
    archive = npz.Archive(path)
    names, required = FIELD_NAMES, tuple(FIELD_NAMES.values())
    if "observations" in archive.keys:
        names = {key: key for key in (*d4rl.REQUIRED, *d4rl.OPTIONAL)}
        required = d4rl.REQUIRED
    checks.required_keys(str(path), required, archive.keys)
    found = {key: field for field, key in names.items() if key in archive.keys}
    archive.headers(found)  # so that a pickle is refused at once

    def blocks(rows: int | None) -> Iterator[Steps]:
        for arrays in archive.blocks(found, rows):
            yield Steps(**{field: arrays[key] for key, field in found.items()})

    return Source(path.stem, str(path), blocks, field_names=names)


def is_table(path: Path) -> bool:
    """Whether an NPZ has other keys than these layouts, so that its columns have to be chosen."""
    with contextlib.suppress(*npz.DAMAGE), zipfile.ZipFile(path) as archive:
        found = {Path(name).stem for name in archive.namelist()}
        return not found & {"observations", "actions", "obs", "action", "next_obs"}
    return False


def open_parquet(path: Path) -> Source:
    """NeoRL2's Parquet: a column per number (obs_0, obs_1, …), or one of lists (obs).

    Without `truncated`, an episode ends where the next row does not go on from `next_obs`.
    """
    import polars as pl

    checks.readable_file(path)
    checks.decodable_parquet(path)
    table = pl.scan_parquet(path, glob=False)
    schema = table.collect_schema()
    columns: dict[str, list[str]] = {}
    names = dict(FIELD_NAMES)
    for field, spellings in _PARQUET_NAMES.items():
        for name in spellings:
            if field not in columns and (found := _columns(name, schema)):
                columns[field], names[field] = found, name
    required = [name for field, name in names.items() if field != "timeouts"]
    checks.required_keys(str(path), required, {*(names[field] for field in columns), *schema})

    def blocks(rows: int | None) -> Iterator[Steps]:
        first, widths = 0, dict[str, int]()
        while True:
            try:
                # One row more, which tells if the last one's episode goes on.
                frame = table.slice(first, None if rows is None else rows + 1).collect()
                arrays = {
                    field: _array(frame, names[field], found, widths)
                    for field, found in columns.items()
                }
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
                raise checks.unreadable(path, "Parquet", error) from error
            here, following = arrays["observations"], arrays["next_observations"]
            if "timeouts" not in arrays and here.ndim == 2 and here.shape == following.shape:
                arrays["timeouts"] = np.ones(len(here), bool)
                arrays["timeouts"][:-1] = np.any(following[:-1] != here[1:], axis=1)
            yield Steps(**{field: array[:rows] for field, array in arrays.items()})
            if rows is None or len(frame) <= rows:
                return
            first += rows

    return Source(path.stem, str(path), blocks, field_names=names)


def _columns(name: str, schema: Mapping[str, Any]) -> list[str]:
    """The column `name`, or else the columns name_0, name_1, …."""
    numbered = [f"{name}_{i}" for i in range(len(schema))]
    return [name] if name in schema else [column for column in numbered if column in schema]


def _array(frame: Any, name: str, columns: list[str], widths: dict[str, int]) -> Any:
    """A column of numbers or of lists of one length, or the columns of numbers side by side."""
    import polars as pl

    if columns != [name]:
        return frame.select(columns).to_numpy()
    column = frame[name]
    if column.dtype == pl.List:
        width = widths.setdefault(name, column.list.len().max() or 0)
        column = column.list.to_array(width)
    return column.to_numpy()
