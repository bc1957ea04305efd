"""Files that are never half-written: atomic replacement, and pytrees as checked NPZ files."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import jax
import numpy as np

from acpo.errors import UserError

T = TypeVar("T")

_HEADER = "header.json"


def write_atomically(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a file beside `path`, flush it to disk, then rename it into place.

    A reader, or a run killed at any moment, sees the old file or the new one, never a part.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"Could not write {path}: {error.strerror or error}. Free some space or choose another "
            "folder with --out; files written before this one are intact."
        ) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()) and None)


def save_tree(path: Path, tree: Any, header: dict[str, Any]) -> None:
    """Store the array leaves of a pytree, named by their paths, with a JSON header.

    The file is an ordinary NPZ (a zip with a checksum per array), readable by numpy alone.
    """
    leaves = jax.tree_util.tree_flatten_with_path(jax.device_get(tree))[0]
    arrays = {jax.tree_util.keystr(key): np.asarray(leaf) for key, leaf in leaves}
    text = np.frombuffer(json.dumps(header, ensure_ascii=False).encode(), dtype=np.uint8)

    def write(file: IO[bytes]) -> None:
        np.savez(file, allow_pickle=False, **{_HEADER: text}, **arrays)

    write_atomically(path, write)


def _open(path: Path) -> Any:
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    return np.load(path, allow_pickle=False)


_DAMAGE = (zipfile.BadZipFile, EOFError, ValueError, KeyError, OSError)


def load_header(path: Path) -> dict[str, Any]:
    """Read only the header of a file written by `save_tree`."""
    try:
        with _open(path) as file:
            return json.loads(bytes(file[_HEADER]).decode())
    except _DAMAGE as error:
        raise UserError(damaged(path)) from error


def load_tree(path: Path, like: T) -> T:
    """Read a pytree of the same structure and shapes as `like`."""
    expected, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    try:
        with _open(path) as file:
            for key, leaf in expected:
                array = file[jax.tree_util.keystr(key)]
                if array.shape != leaf.shape or array.dtype != leaf.dtype:
                    raise UserError(
                        f"{path}: {jax.tree_util.keystr(key)} has shape {array.shape}, but this "
                        f"configuration needs {leaf.shape}. It was written by another one."
                    )
                leaves.append(array)
    except _DAMAGE as error:
        raise UserError(damaged(path)) from error
    return jax.tree_util.tree_unflatten(structure, leaves)


def damaged(path: Path) -> str:
    return f"{path} is truncated or damaged and cannot be read."
