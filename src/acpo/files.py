"""Files that are never half-written, and NPZ files with a header."""

from __future__ import annotations

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from acpo.errors import UserError

_HEADER = "header.json"
_PART = ".part"


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file beside `path`, flush it to disk, then rename it into place.

    A reader, or a run killed at any moment, sees the old file or the new one, never a part.
    """
    # In memory first: on a full disk polars raises an error of its own and HDF5 crashes.
    content = io.BytesIO()
    write(content)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_PART}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"Could not write {path}: {error.strerror or error}. Free some space or choose another "
            "place; what was written before is intact."
        ) from error
    finally:
        # Gone already when all went well; where the folder itself is at fault, nothing to remove.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what a killed writer left: the halves `write_atomically` had not renamed yet."""
    for part in folder.rglob(f".*{_PART}"):
        part.unlink(missing_ok=True)


def is_leftover(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(_PART)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds no fields. Put back a copy of it.")
    return content


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> None:
    """Store named arrays and a JSON header as an ordinary NPZ: a zip with a checksum per array."""
    # The names, because a zip with a damaged directory may just seem to hold fewer arrays.
    text = json.dumps({"arrays": list(arrays), **header}, ensure_ascii=False)
    stored = np.frombuffer(text.encode(), dtype=np.uint8)
    write_atomically(
        path, lambda file: np.savez(file, allow_pickle=False, **{_HEADER: stored}, **arrays)
    )


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `save_arrays` wrote."""
    if not path.exists():
        raise UserError(f"File not found: {path.absolute()}.")
    try:
        # np.load would take a file that is no zip for a pickle, and say so misleadingly.
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
            header = json.loads(bytes(file[_HEADER]).decode())
            names = header.pop("arrays", [name for name in file.files if name != _HEADER])
            return {name: file[name] for name in names}, header
    # Depending on the byte that is wrong, zipfile, zlib and numpy raise almost anything.
    except Exception as error:
        raise UserError(f"{path} is truncated or damaged and cannot be read ({error}).") from error
