"""D4RL's HDF5 layout: one array per field, episodes one after another."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike

from acpo.data import checks
from acpo.data.dataset import Dataset
from acpo.data.features import Features
from acpo.data.options import ConstantColumns
from acpo.data.pairing import Episodes, Steps
from acpo.data.source import Source
from acpo.errors import UserError
from acpo.files import write_atomically

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations")

# Root attribute with the Gymnasium id; D4RL's own files lack it.
ENVIRONMENT_ATTRIBUTE = "env"
# What D4RL has no place for: names and units, and facts of episodes that lost their last row.
FEATURES_ATTRIBUTE = "acpo_features"
EPISODES_GROUP = "acpo_episodes"


def load(path: str | os.PathLike[str], *, constant_columns: ConstantColumns = "refuse") -> Dataset:
    """Load an HDF5 file with D4RL's keys; `timeouts` and `next_observations` may be absent.

    Raises:
        UserError: if the file cannot be read, lacks a key, or its contents are refused.
    """
    return open_file(Path(path)).read(keep_constant=constant_columns == "keep")


def open_file(path: Path) -> Source:
    """An HDF5 file with D4RL's keys."""
    checks.readable_file(path)
    with _opened(path) as file:
        # A group in an array's place is reported like an absent array.
        found = [key for key in (*REQUIRED, *OPTIONAL) if _is_array(file.get(key))]
        arrays = [key for key in file if _is_array(file.get(key))]
        checks.required_keys(str(path), REQUIRED, arrays)
        environment = file.attrs.get(ENVIRONMENT_ATTRIBUTE)
        features = Features.from_json(json.loads(file.attrs.get(FEATURES_ATTRIBUTE, "{}")))
        episodes = None
        if isinstance(group := file.get(EPISODES_GROUP), type(file["/"])):
            checks.required_keys(f"{path}, {EPISODES_GROUP}", Episodes._fields, list(group))
            episodes = Episodes(*(group[name][()] for name in Episodes._fields))
    if isinstance(environment, bytes):
        environment = environment.decode(errors="replace")

    def blocks(rows: int | None) -> Iterator[Steps]:
        with _opened(path) as file:
            if rows is None:
                yield Steps(**{key: file[key][()] for key in found})
                return
            lengths = {key: len(file[key]) for key in found}
            checks.same_length(str(path), lengths)
            for first in range(0, lengths[REQUIRED[0]], rows):
                yield Steps(**{key: file[key][first : first + rows] for key in found})

    return Source(
        name=path.stem,
        location=str(path),
        blocks=blocks,
        environment=environment if isinstance(environment, str) else None,
        features=features,
        episodes=episodes,
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield file
    # h5py raises one or another of these, depending on the byte at which a file is damaged.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read as HDF5: it is not such a file, or it was cut short. "
            f"Fetch or write it again. (HDF5 says: {error})"
        ) from error


def _is_array(entry: Any) -> bool:
    return hasattr(entry, "dtype") and hasattr(entry, "shape")


def save(
    path: str | os.PathLike[str],
    *,
    observations: ArrayLike,
    actions: ArrayLike,
    rewards: ArrayLike,
    terminals: ArrayLike,
    timeouts: ArrayLike,
    next_observations: ArrayLike | None = None,
    attrs: Mapping[str, str | int | float],
) -> None:
    """Write the layout `load` reads, with `attrs` as root attributes ("env": the Gymnasium id).

    The file appears complete or not at all.
    """
    import h5py

    arrays = {
        "observations": np.asarray(observations, np.float32),
        "actions": np.asarray(actions, np.float32),
        "rewards": np.asarray(rewards, np.float32),
        "terminals": np.asarray(terminals, np.bool_),
        "timeouts": np.asarray(timeouts, np.bool_),
    }
    if next_observations is not None:
        arrays["next_observations"] = np.asarray(next_observations, np.float32)

    def write(opened: IO[bytes]) -> None:
        with h5py.File(opened, "w") as file:
            for key, array in arrays.items():
                file.create_dataset(key, data=array, compression="gzip", shuffle=True)
            file.attrs.update(attrs)

    write_atomically(Path(path), write)
