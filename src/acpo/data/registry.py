"""Which door a name, a path or an object takes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from acpo.data import catalogue, combine, d4rl, minari, neorl2, parquet, store, tables
from acpo.data.checks import readable_file
from acpo.data.dataset import Dataset
from acpo.data.options import DataOptions
from acpo.data.source import BLOCK_ROWS, Source, Stream
from acpo.errors import UserError

DEFAULT = catalogue.BUILTIN

_DEFAULTS = DataOptions()
# A flag that a source would ignore is refused instead.
_FOR_TABLES = (
    *("observation", "action", "next_observation", "reward", "episode", "time", "gap"),
    *("terminal", "timeout", "categorical"),
)
_MINARI_ID = re.compile(r"(?:minari:)?((?:[\w.-]+/)*[\w.-]+-v\d+)")
_TABLES = (".csv", ".tsv", ".parquet")
_SIGNATURES = {
    b"\x89HDF\r\n\x1a\n": ".hdf5",
    b"PK\x03\x04": ".npz",
}
FORMATS = (
    "HDF5 in D4RL's layout (.hdf5, .h5), NPZ (.npz), CSV (.csv, .tsv), Parquet (.parquet), a "
    "folder of tables, or our store (.acpo)"
)


def load_dataset(source: Any, **options: Any) -> Dataset:
    """Load a dataset by name, from a file or folder, or from arrays or a data frame.

    Args:
        source: A name (`acpo data list` has them; a Minari id is one too), a path (HDF5 in D4RL's
            layout, NPZ, CSV, Parquet, a folder of tables, our own store), several of these joined
            by "+", a pandas or Polars frame, or a mapping of names to numpy arrays.
        options: Fields of `DataOptions`; `constant_columns="keep"` for instance accepts
            observation columns that never change, which usually are a mistake.

    Raises:
        UserError: if there is no such name or file, or if its contents are refused.
    """
    return load(source, make_options(options))


def make_options(given: dict[str, Any]) -> DataOptions:
    """`DataOptions` from keywords; a list, or a single name where several may stand, will do."""
    known = {field.name for field in fields(DataOptions)}
    for name in given:
        if name not in known:
            raise TypeError(f"load_dataset has no option {name!r}; it has {sorted(known)}")
    several = {name for name in known if getattr(_DEFAULTS, name) == ()}
    for name in several & set(given):
        value = given[name]
        given = {**given, name: (value,) if isinstance(value, str) else tuple(value)}
    return DataOptions(**given)


def load(source: Any, options: DataOptions) -> Dataset:
    """A dataset in memory, or one that stays on disk in our store, as the options ask."""
    parts = []
    for part in _parts(source):
        opened = _open(part, options, whole=True)
        if isinstance(opened, Source):
            opened = opened.read(keep_constant=options.constant_columns == "keep")
        parts.append(opened)
    # One alone may stay on disk.
    return combine.apply(parts[0] if len(parts) == 1 else combine.concatenate(parts), options)


def stream(source: str, options: DataOptions, rows: int = BLOCK_ROWS) -> Stream:
    """What `load` gives, without any validation set, at most so many rows at a time."""
    parts = [(part, _open(part, options, whole=False)) for part in _parts(source)]

    def opened() -> Stream:
        return combine.joined([begun(*part) for part in parts])

    def begun(part: str, found: Source | Dataset) -> Stream:
        if isinstance(found, Dataset):
            return found.stream(rows)
        # In a published file constant columns are no mistake.
        keep = options.constant_columns == "keep" or part in catalogue.ENTRIES
        return found.stream(rows, keep_constant=keep)

    return combine.stream(opened, options, source)


def _parts(source: Any) -> list[Any]:
    """What is joined by "+", unless that is part of a name."""
    if not isinstance(source, str | os.PathLike):
        return [source]
    text = os.fspath(source)
    whole = text in catalogue.ENTRIES or os.path.exists(os.path.expanduser(text))
    return [text] if whole else text.split("+")


def _open(source: Any, options: DataOptions, *, whole: bool) -> Source | Dataset:
    """What a single source gives before any episode is chosen; a `Source` has not been read yet.

    Args:
        whole: It will be in memory: a table may be held while it is surveyed, and a dataset known
            by name comes with its validation set.
    """
    if not isinstance(source, str | os.PathLike):
        return tables.open_frame(source, options)
    text = os.fspath(source)
    path = Path(os.path.expanduser(text))
    if text in catalogue.ENTRIES:
        by_name = catalogue.open_name if whole else catalogue.open_source
        door: Door | None = _plain(text, partial(by_name, text))
    else:
        door = _at(path, text, whole)
    if door is not None:
        return door(options)
    near = catalogue.similar(text)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    raise UserError(
        f"No dataset is named '{text}', and there is no such file{hint} acpo data list shows the "
        f"names. A file is given by its path: {FORMATS}."
    )


Door = Callable[[DataOptions], Source | Dataset]


def _at(path: Path, text: str, whole: bool) -> Door | None:
    """The door of a path, by what it is, its suffix, or its first bytes."""
    suffix = path.suffix.lower()
    if not os.path.exists(path):
        found = _MINARI_ID.fullmatch(text)
        if found and not catalogue.similar(text):
            return _plain(text, lambda options: minari.open_id(found[1]))
        looks_like_path = suffix in (".hdf5", ".h5", ".npz", ".acpo", *_TABLES) or (
            os.path.dirname(text) and not catalogue.similar(text)
        )
        if looks_like_path:
            readable_file(path)
        return None
    if path.is_dir() and (store.is_store(path) or suffix == store.SUFFIX):
        return _plain(text, lambda options: store.load(path))
    if path.is_dir():
        return lambda options: tables.open_file(path, options, hold=whole)
    readable_file(path)
    if suffix not in (".hdf5", ".h5", ".npz", *_TABLES):
        with path.open("rb") as file:
            start = file.read(8)
        suffix = next((s for mark, s in _SIGNATURES.items() if start.startswith(mark)), suffix)
    if suffix in (".hdf5", ".h5"):
        return _plain(text, lambda options: d4rl.open_file(path))
    if suffix == ".npz":
        if neorl2.is_table(path):
            return lambda options: tables.open_npz(path, options, hold=whole)
        return _plain(text, lambda options: neorl2.open_file(path))
    if suffix == ".parquet" and parquet.is_ours(path):
        return _plain(text, lambda options: parquet.open_file(path))
    if suffix in _TABLES:
        return lambda options: tables.open_file(path, options, hold=whole)
    raise UserError(f"{path} is in no supported format; these are {FORMATS}.")


def _plain(text: str, open_it: Door) -> Door:
    """The door of a source whose columns are known: it takes no options that choose columns."""

    def door(options: DataOptions) -> Source | Dataset:
        for name in _FOR_TABLES:
            if getattr(options, name) != getattr(_DEFAULTS, name):
                raise UserError(
                    f"--{name.replace('_', '-')} chooses columns of a table, but the columns of "
                    f"{text} are known. Leave it out."
                )
        opened = open_it(options)
        if not options.scale_actions:
            return opened
        if isinstance(opened, Dataset):
            raise UserError(
                f"{text} has its actions in [-1, 1] already; leave out --scale-actions."
            )
        return opened.with_scaled_actions()

    return door


def columns(source: Any, options: DataOptions) -> list[str]:
    """Which columns of a table were taken for what, line by line; nothing for other sources."""
    path = Path(os.path.expanduser(os.fspath(source))) if isinstance(source, str) else None
    if path is None or not os.path.exists(path) or not _is_table(path):
        return []
    return tables.chosen(path, options)


def _is_table(path: Path) -> bool:
    if path.is_dir():
        return not store.is_store(path)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return neorl2.is_table(path)
    return suffix in _TABLES and not (suffix == ".parquet" and parquet.is_ours(path))
