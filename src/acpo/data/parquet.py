"""Our own Parquet layout: one row per transition, and what the rows do not tell in the footer.

Columns: observation_0…, action_0…, next_observation_0…, reward (float32), terminal, timeout (bool;
a timeout is the last row of an episode that was cut) and episode (int32). The footer's key "acpo"
holds JSON: name, environment, features, and the return, length and number of rows of each episode,
which a cut-off episode's transitions do not tell; an episode of which no row was kept stands only
there. Rows stand in groups of `BLOCK_ROWS`, which are written and read one at a time.

The JSON begins with a checksum of all other bytes of the file, because some damage would make
polars end the whole process. A program that rewrites such a file without the footer's key leaves an
ordinary table.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from acpo.data import checks
from acpo.data.pairing import Steps, Transitions
from acpo.data.source import BLOCK_ROWS, Source, Stream
from acpo.data.writing import ends, from_facts, part, to_facts
from acpo.errors import UserError

if TYPE_CHECKING:
    import polars as pl

KEY = "acpo"

# How the JSON begins; no other place of a footer can look so, as quotes inside of it are escaped.
_MARK, _ZEROS = b'{"crc32": "', b"00000000"

# A field of several numbers takes that many columns: observation_0, observation_1, ….
_MATRICES = {
    "observation": "observations",
    "action": "actions",
    "next_observation": "next_observations",
}
_VECTORS = {"reward": "rewards", "terminal": "terminals", "timeout": "timeouts"}


def write(path: Path, stream: Stream) -> None:
    """Write a stream, a row group at a time; the file appears complete or not at all.

    Raises:
        UserError: if it cannot be written, or what the stream raises.
    """
    import polars as pl
    from polars.io.plugins import register_io_source

    frames = (_frame(*block) for block in ends(stream.blocks))
    first = next(frames)
    source = register_io_source(
        lambda *_: itertools.chain([first], frames), schema=dict(first.schema)
    )
    with part(path) as temporary:
        try:
            source.sink_parquet(
                temporary,
                row_group_size=BLOCK_ROWS,
                statistics=False,
                # Asked for when the last row has been written.
                metadata=lambda _: {
                    KEY: json.dumps({"crc32": _ZEROS.decode(), **to_facts(stream)})
                },
            )
        except pl.exceptions.PolarsError as error:  # of a full disk, for example
            raise OSError(str(error)) from error
        with temporary.open("r+b") as file:
            at = _place(file)
            checksum = _checksum(file, at)
            file.seek(at)
            file.write(checksum)


def _frame(block: Transitions, last: NDArray[np.bool_]) -> pl.DataFrame:
    import polars as pl

    arrays = {**block._asdict(), "timeouts": last & ~block.terminals}
    columns = {
        f"{name}_{i}": column
        for name, field in _MATRICES.items()
        for i, column in enumerate(np.ascontiguousarray(arrays[field].T))
    }
    columns |= {name: np.ascontiguousarray(arrays[field]) for name, field in _VECTORS.items()}
    return pl.DataFrame({**columns, "episode": block.episode_ids})


def is_ours(path: Path) -> bool:
    """Whether `write` wrote this file; reads its footer only."""
    try:
        with path.open("rb") as file:
            return _place(file) > 0
    except OSError:
        return False


def _place(file: IO[bytes]) -> int:
    """Where the checksum stands; 0 in a file that is not ours."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 8, 0))
    length, magic = file.read(4), file.read(4)
    first = size - 8 - int.from_bytes(length, "little")
    if magic != b"PAR1" or first < 0:
        return 0
    file.seek(first)
    found = file.read().find(_MARK)
    return 0 if found < 0 else first + found + len(_MARK)


def _checksum(file: IO[bytes], at: int) -> bytes:
    """Of all bytes but the checksum's own."""
    code = 0
    for first, after in ((0, at), (at + len(_ZEROS), file.seek(0, os.SEEK_END))):
        file.seek(first)
        while piece := file.read(min(2**20, after - file.tell())):
            code = zlib.crc32(piece, code)
    return b"%08x" % code


def open_file(path: Path) -> Source:
    """A file that `write` wrote.

    Raises:
        UserError: if the file cannot be read or has been changed.
    """
    import polars as pl

    checks.readable_file(path)
    with _reading(path):
        with path.open("rb") as file:
            at = _place(file)
            file.seek(at)
            stored = file.read(len(_ZEROS))
            if not at or stored != _checksum(file, at):
                raise UserError(
                    f"{path} does not fit its checksum: it is damaged, or another program has "
                    "changed it. Convert the data again."
                )
        facts = json.loads(pl.read_parquet_metadata(path)[KEY])
        table = pl.scan_parquet(path, glob=False)
        names = table.collect_schema().names()
    columns = {field: _numbered(name, names) for name, field in _MATRICES.items()}
    needed = [name for group in columns.values() for name in group] + [*_VECTORS]
    checks.required_keys(str(path), needed, names)

    def blocks(rows: int | None) -> Iterator[Steps]:
        first = 0
        while True:
            with _reading(path):
                frame = table.select(needed).slice(first, rows).collect()
                arrays = {f: frame.select(c).to_numpy(order="c") for f, c in columns.items()}
                arrays |= {f: frame[name].to_numpy() for name, f in _VECTORS.items()}
            if not len(frame):
                return
            del frame  # not needed while the caller works
            yield Steps(**arrays)
            if rows is None:
                return
            first += rows

    return Source(location=str(path), blocks=blocks, **from_facts(str(path), facts))


def _numbered(name: str, names: list[str]) -> list[str]:
    """The columns name_0, name_1, …; at least the first, which is then reported as absent."""
    count = sum(bool(re.fullmatch(rf"{name}_\d+", other)) for other in names)
    return [f"{name}_{i}" for i in range(max(count, 1))]


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    import polars as pl

    try:
        yield
    except UserError:
        raise
    # Depending on the byte that is wrong polars raises almost anything; a panic is no Exception.
    except (Exception, pl.exceptions.PanicException) as error:
        raise UserError(
            f"{path} cannot be read as Parquet: it is not such a file, or it was cut short. "
            f"Fetch or write it again. (The reader says: {error})"
        ) from error
