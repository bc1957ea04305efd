"""The arrays of an NPZ file, whole or some rows at a time."""

from __future__ import annotations

import contextlib
import math
import shutil
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from acpo.data import checks
from acpo.errors import UserError

_SUFFIX = ".npy"
_PIECE = 2**20

# What zipfile, zlib and numpy raise, depending on the byte that is wrong.
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError),
    *(NotImplementedError, OverflowError, MemoryError, struct.error),
    *(SyntaxError, tokenize.TokenError),  # of a header, which is written as Python
)


class Header(NamedTuple):
    """What an array's first bytes tell of it."""

    shape: tuple[int, ...]
    fortran: bool
    """Column after column, as numpy stores the transpose of an ordinary matrix."""
    dtype: np.dtype[Any]


class Archive:
    """An NPZ file of which the names are known; nothing else is read before it is asked for.

    Raises:
        UserError: here and below, if the file is damaged, or an array is stored as a pickle.
    """

    def __init__(self, path: Path) -> None:
        checks.readable_file(path)
        self.path = path
        with self._reading() as archive:
            found = [name for name in archive.namelist() if name.endswith(_SUFFIX)]
        self.keys = [name.removesuffix(_SUFFIX) for name in found]

    def headers(self, keys: Iterable[str]) -> dict[str, Header]:
        found = {}
        with self._reading() as archive:
            for key in keys:
                stream, found[key] = self._opened(archive, key)
                stream.close()
        return found

    def whole(self, keys: Iterable[str]) -> dict[str, NDArray[Any]]:
        with self._reading() as archive:
            return {key: self._whole(archive, key) for key in keys}

    def blocks(self, keys: Iterable[str], rows: int | None) -> Iterator[dict[str, NDArray[Any]]]:
        """At most so many rows of each array at a time, side by side; all at once if given None."""
        keys = list(keys)
        headers = self.headers(keys)
        if rows is None or not all(header.shape for header in headers.values()):
            yield self.whole(keys)
            return
        checks.same_length(str(self.path), {key: headers[key].shape[0] for key in keys})
        with self._reading() as archive:
            streams = [_blocks(*self._opened(archive, key), rows) for key in keys]
            for arrays in zip(*streams, strict=True):
                yield dict(zip(keys, arrays, strict=True))

    def _opened(self, archive: zipfile.ZipFile, key: str) -> tuple[IO[bytes], Header]:
        """The stream behind an array's header, and the header."""
        stream = archive.open(key + _SUFFIX)
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        header = Header(*read(stream))
        if header.dtype.hasobject:
            raise UserError(
                f"{self.path}: '{key}' is an array of Python objects, stored as a pickle. Loading "
                "a pickle can run any code, so it is refused; store it as a plain array of numbers."
            )
        size = math.prod(header.shape) * header.dtype.itemsize
        if min(header.shape, default=0) < 0 or size > archive.getinfo(key + _SUFFIX).file_size:
            raise ValueError(f"'{key}' claims to have the shape {header.shape}")
        return stream, header

    def _whole(self, archive: zipfile.ZipFile, key: str) -> NDArray[Any]:
        self._opened(archive, key)[0].close()
        with archive.open(key + _SUFFIX) as stream:
            array = npy.read_array(stream, allow_pickle=False)
            _drain(stream)
        return array

    @contextlib.contextmanager
    def _reading(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except DAMAGE as error:
            raise UserError(
                f"{self.path} cannot be read as NPZ: it is not such a file, or it was cut short. "
                f"Fetch or write it again. (The reader says: {error})"
            ) from error


def _blocks(stream: IO[bytes], header: Header, rows: int) -> Iterator[NDArray[Any]]:
    read = _from_columns if header.fortran and len(header.shape) > 1 else _from_rows
    with stream:
        yield from read(stream, header, rows)
        _drain(stream)


def _from_rows(stream: IO[bytes], header: Header, rows: int) -> Iterator[NDArray[Any]]:
    length, *others = header.shape
    width = math.prod(others) * header.dtype.itemsize
    for first in range(0, length, rows):
        count = min(rows, length - first)
        content = _exactly(stream, count * width)
        yield np.ndarray((count, *others), header.dtype, content)


def _from_columns(stream: IO[bytes], header: Header, rows: int) -> Iterator[NDArray[Any]]:
    """Rows of an array that is stored column after column, from a copy that can be read anywhere.

    The copy is a file without a name, which is gone when this ends.
    """
    length, *others = header.shape
    size, columns = header.dtype.itemsize, math.prod(others)
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy, _PIECE)
        for first in range(0, length, rows):
            count = min(rows, length - first)
            block = np.empty((count, columns), header.dtype)
            for column in range(columns):
                copy.seek((column * length + first) * size)
                block[:, column] = np.frombuffer(_exactly(copy, count * size), header.dtype)
            yield block.reshape((count, *others), order="F")


def _exactly(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError(f"an array ends {size - len(content):,} bytes early")
    return content


def _drain(stream: IO[bytes]) -> None:
    """Read what is left: only at its very end is an array compared with its checksum."""
    while stream.read(_PIECE):
        pass
