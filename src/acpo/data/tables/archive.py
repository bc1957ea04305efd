"""An NPZ file as a table: a column per vector, and one per column of a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from acpo.data import npz
from acpo.data.tables import cells
from acpo.data.tables.rows import Part

if TYPE_CHECKING:
    import polars as pl


def part(path: Path) -> Part:
    """The file's arrays, read as far as they are asked for.

    Raises:
        UserError: if it is damaged, or its arrays are no columns of one table.
    """
    from polars.io.plugins import register_io_source

    where, file = str(path), npz.Archive(path)
    headers = file.headers(file.keys)
    # Of the real shape, but without the memory for it.
    empty = {key: np.broadcast_to(np.zeros((), h.dtype), h.shape) for key, h in headers.items()}
    keys = {name: key for key in empty for name in cells.columns(where, {key: empty[key]})}

    def frames(names: Sequence[str], rows: int | None) -> Iterator[pl.DataFrame]:
        for arrays in file.blocks(dict.fromkeys(keys[name] for name in names), rows):
            yield cells.as_polars(where, arrays).select(names).collect()

    def scan(
        names: list[str] | None, predicate: pl.Expr | None, limit: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        for frame in frames(names or list(keys), None):
            kept = frame.head(len(frame) if limit is None else limit)
            yield kept if predicate is None else kept.filter(predicate)

    lazy = register_io_source(scan, schema=cells.schema(where, empty))
    count = len(next(iter(empty.values()), ()))
    return Part(where, "NPZ", lambda _: lazy, typed=True, count=count, blocks=frames)
