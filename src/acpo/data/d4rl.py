"""D4RL's HDF5 layout: one array per field, episodes one after another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike

from acpo.data import checks
from acpo.data.dataset import ConstantColumns, Dataset, from_arrays
from acpo.errors import UserError
from acpo.files import write_atomically

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations")

# Root attribute with the Gymnasium id; D4RL's own files lack it.
ENVIRONMENT_ATTRIBUTE = "env"


def load(path: str | os.PathLike[str], *, constant_columns: ConstantColumns = "refuse") -> Dataset:
    """Load an HDF5 file with D4RL's keys; `timeouts` and `next_observations` may be absent.

    Raises:
        UserError: if the file cannot be read, lacks a key, or `from_arrays` refuses its contents.
    """
    path = Path(path)
    checks.readable_file(path)
    arrays, environment = _read(path)
    return from_arrays(
        **arrays,
        name=path.stem,
        source=str(path),
        environment=environment,
        constant_columns=constant_columns,
    )


def _read(path: Path) -> tuple[dict[str, Any], str | None]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            # A group in an array's place is reported like an absent array.
            found = [key for key in file if isinstance(file.get(key), h5py.Dataset)]
            checks.required_keys(str(path), REQUIRED, found)
            arrays = {key: file[key][()] for key in (*REQUIRED, *OPTIONAL) if key in found}
            environment = file.attrs.get(ENVIRONMENT_ATTRIBUTE)
    # h5py raises one or another of these, depending on the byte at which a file is damaged.
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as HDF5: it is not such a file, or it was cut short. "
            f"Fetch or write it again. (HDF5 says: {error})"
        ) from error
    if isinstance(environment, bytes):
        environment = environment.decode(errors="replace")
    return arrays, environment if isinstance(environment, str) else None


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
