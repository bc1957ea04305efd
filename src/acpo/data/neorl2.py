"""NPZ files: NeoRL2's keys, or D4RL's."""

from __future__ import annotations

import os
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
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError) as error:
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
