"""Write a dataset as a file of another format, chosen by the name of the target."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from acpo.data import d4rl, minari, parquet
from acpo.data.source import Stream
from acpo.data.writing import hidden, replace_folder, unwritable
from acpo.errors import UserError

MINARI = "minari:"

_WRITERS: dict[str, Callable[[Path, Stream], None]] = {
    ".hdf5": d4rl.write,
    ".h5": d4rl.write,
    ".parquet": parquet.write,
}


def convert(stream: Stream, out: str, *, overwrite: bool = False) -> str:
    """Write `stream` as `out`, so that loading `out` gives the same dataset; returns where it is.

    Args:
        out: X.hdf5 or X.h5 (D4RL's layout), X.parquet, X.acpo (our memory-mapped store), or
            minari:ID (a dataset in Minari's own folder).
        overwrite: Replace what is there. It stays until the new data are complete.

    Raises:
        UserError: if `out` names no format, exists already, or cannot be written.
    """
    if out.startswith(MINARI):
        minari.write(out.removeprefix(MINARI), stream, overwrite=overwrite)
        return out
    path = Path(out).expanduser()
    kind = path.suffix.lower()
    if kind not in _WRITERS and kind != ".acpo":
        raise UserError(
            f"'{out}' names no format that can be written. Give X.hdf5 (D4RL's layout), X.parquet, "
            "X.acpo (a store that is read through a memory map) or minari:ID."
        )
    if os.path.exists(path) and not overwrite:
        raise UserError(f"{path} exists already. Choose another name, or allow to overwrite it.")
    if kind == ".acpo":
        _write_store(path, stream)
    else:
        _WRITERS[kind](path, stream)
    return str(path)


def _write_store(path: Path, stream: Stream) -> None:
    from acpo.data import store

    if not path.exists():
        store.write(path, stream)
        return
    if not store.is_store(path):
        raise UserError(f"{path} is no store of acpo, so it is not overwritten; remove it first.")
    new = hidden(path, ".new")
    store.write(new, stream)
    try:
        replace_folder(new, path)
    except OSError as error:
        raise unwritable(path, error) from error
