"""D4RL's HDF5 layout: one array per field, episodes one after another."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike

from acpo.data import checks
from acpo.data.dataset import Dataset
from acpo.data.features import Features
from acpo.data.options import ConstantColumns
from acpo.data.pairing import Episodes, Steps
from acpo.data.source import Source, Stream
from acpo.data.writing import HDF5File, ends, part, stored_episodes
from acpo.errors import UserError
from acpo.files import write_atomically

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations")

# Root attribute with the Gymnasium id; D4RL's own files lack it.
ENVIRONMENT_ATTRIBUTE = "env"
# What D4RL has no place for: names and units, and facts of episodes that lost their last row.
FEATURES_ATTRIBUTE = "acpo_features"
EPISODES_GROUP = "acpo_episodes"

# An attribute of fixed length may have 64 KiB with its name.
FIXED_BYTES = 60_000
# A chunk is compressed as one and should fit HDF5's cache of 1 MiB: so many rows, so many numbers.
CHUNK_ROWS, CHUNK_NUMBERS = 4_096, 2**18
# On real locomotion data this is as small as the stronger levels to 2 %, in two thirds of the time;
# unlike LZF it is part of every HDF5 library, and it notices damage.
COMPRESSION: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True}

# AntMaze: an observation begins with the ant's position, and maze cells are 4 wide. No step of the
# ant's is nearly as long as half a cell, so a longer one is a reset.
_MAZE_WIDTH = 29
_MAZE_LEAP = 2.0


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
        environment = _text(file, ENVIRONMENT_ATTRIBUTE)
        features = Features.from_json(json.loads(_text(file, FEATURES_ATTRIBUTE) or "{}"))
        episodes = None
        if isinstance(group := file.get(EPISODES_GROUP), type(file["/"])):
            checks.required_keys(f"{path}, {EPISODES_GROUP}", Episodes._fields, list(group))
            checks.same_length(str(path), _lengths(group, Episodes._fields))
            episodes = stored_episodes(str(path), *(group[name][()] for name in Episodes._fields))
        shape = file["observations"].shape
        maze = _is_array(file.get("infos/goal")) and shape[1:] == (_MAZE_WIDTH,)

    def blocks(rows: int | None) -> Iterator[Steps]:
        with _opened(path) as file:
            lengths = _lengths(file, found)
            checks.same_length(str(path), lengths)
            if rows is None:
                steps = Steps(**{key: file[key][()] for key in found})
                yield _with_maze_ends(steps, steps.observations[:0]) if maze else steps
                return
            for first in range(0, lengths[REQUIRED[0]], rows):
                beyond = first + rows
                steps = Steps(**{key: file[key][first:beyond] for key in found})
                after = file["observations"][beyond : beyond + 1]
                yield _with_maze_ends(steps, after) if maze else steps

    return Source(
        name=path.stem,
        location=str(path),
        blocks=blocks,
        environment=environment,
        features=features,
        episodes=episodes,
    )


def _with_maze_ends(steps: Steps, after: Any) -> Steps:
    """Flags of AntMaze that are true to its trajectories; `after` is the row that follows, if any.

    Its `terminals` are relabelled: true wherever the next row is at the goal, though the trajectory
    goes on. At a trajectory's last row, which a timeout marks, they speak of the start of another
    one, and D4RL leaves such rows out. The timeouts of v0 miss resets, which show as leaps.
    """
    rows = len(steps.observations)
    ended = np.ravel(steps.terminals) > 0
    cut = np.zeros(rows, bool) if steps.timeouts is None else np.ravel(steps.timeouts) > 0
    if len(ended) != rows or len(cut) != rows:
        return steps  # to be refused for its lengths
    place = np.concatenate([steps.observations[:, :2], after[:, :2]])
    leaps = np.linalg.norm(np.diff(place, axis=0), axis=1) > _MAZE_LEAP
    ended &= ~cut
    cut[: len(leaps)] |= leaps
    return steps._replace(terminals=ended, timeouts=cut)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield file
    # h5py raises one or another of these, depending on the byte at which a file is damaged.
    except (
        OSError,
        RuntimeError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        MemoryError,
    ) as error:
        raise UserError(
            f"{path} cannot be read as HDF5: it is not such a file, or it was cut short. "
            f"Fetch or write it again. (HDF5 says: {error})"
        ) from error


def _text(file: Any, name: str) -> str | None:
    # The shape first: a damaged one may ask for more numbers than can be read in a lifetime.
    if name not in file.attrs or file.attrs.get_id(name).shape != ():
        return None
    value = file.attrs[name]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value if isinstance(value, str) else None


def _lengths(group: Any, keys: Iterable[str]) -> dict[str, int]:
    """Rows of the arrays, to be compared before any is read: a damaged one may exceed memory."""
    return {key: group[key].shape[0] for key in keys if group[key].shape}


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


def write(path: Path, stream: Stream) -> None:
    """Write a stream in the layout `load` reads, a block at a time, nothing lost.

    `timeouts` is true at the last row of each episode that has no terminal. The file appears
    complete or not at all.

    Raises:
        UserError: if it cannot be written, or what the stream raises.
    """
    with part(path) as temporary, HDF5File(temporary, "w+") as target, ThreadPoolExecutor(1) as own:
        # In a thread of its own: Ctrl-C reaches the main one only, and must not pass through HDF5.
        job = own.submit(_write, target, stream)
        try:
            # In turns, because polars makes waiting deaf to Ctrl-C.
            while not wait([job], timeout=0.2).done:
                pass
            job.result()
        except BaseException as error:
            target.failure = target.failure or error  # so that the thread ends, if it has not
            raise


def _write(target: HDF5File, stream: Stream) -> None:
    import h5py

    try:
        with h5py.File(target, "w") as file:
            for block, last in ends(stream.blocks):
                arrays = block._asdict()
                del arrays["episode_ids"]
                _append(file, {**arrays, "timeouts": last & ~block.terminals})
                target.check()
            if stream.environment is not None:
                file.attrs[ENVIRONMENT_ATTRIBUTE] = _fixed(stream.environment)
            if features := stream.features.to_json():
                file.attrs[FEATURES_ATTRIBUTE] = _fixed(json.dumps(features))
            group = file.create_group(EPISODES_GROUP)
            for name, array in stream.episodes()._asdict().items():
                group.create_dataset(name, data=array, **COMPRESSION)
    finally:
        # Closing writes too; and where HDF5 complained, this is why.
        target.check()


def _fixed(text: str) -> Any:
    """A text for an attribute, of fixed length if it is short enough for one.

    HDF5 keeps others in a heap, and where that is damaged it may read for ever.
    """
    stored = text.encode()
    return np.bytes_(stored) if 0 < len(stored) < FIXED_BYTES else text


def _append(file: Any, arrays: Mapping[str, np.ndarray]) -> None:
    for key, array in arrays.items():
        columns = array.shape[1:]
        if key not in file:
            rows = max(min(CHUNK_ROWS, CHUNK_NUMBERS // max(columns, default=1)), 1)
            file.create_dataset(
                key,
                shape=(0, *columns),
                maxshape=(None, *columns),
                chunks=(rows, *columns),
                dtype=array.dtype,
                **COMPRESSION,
            )
        stored = file[key]
        first = len(stored)
        stored.resize(first + len(array), axis=0)
        stored[first:] = array
