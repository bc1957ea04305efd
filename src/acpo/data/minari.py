"""Minari datasets, read and written through the `minari` package (extra `acpo[minari]`).

An episode of T steps has T+1 observations. A step that is the last of its episode and neither
terminated nor truncated was cut off there.

Observations (and actions) that are a Dict or a Tuple become one row of numbers: the keys of a Dict
in alphabetical order, the parts of a Tuple in theirs, depth first, each array row by row. A
goal-conditioned set thus gives achieved_goal, desired_goal, observation; `Features` has the names
achieved_goal_0, achieved_goal_1, …. Only numbers will do: discrete spaces, texts and images are
refused.

Actions whose space is bounded by other numbers than −1 and 1 are scaled to [−1, 1] by these bounds,
which `Features` keeps as their units.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acpo.data import checks
from acpo.data.checks import ACTION_TOLERANCE
from acpo.data.features import Features
from acpo.data.pairing import Steps, Transitions
from acpo.data.source import Source, Stream
from acpo.data.writing import by_episode, from_facts, replace_folder, to_facts, unwritable
from acpo.errors import UserError

# Our key in a dataset's metadata: what Minari has no place for.
KEY = "acpo"
# In an episode's infos, where an observation does not follow from the step before.
NEXT_OBSERVATIONS = "acpo_next_observations"

FIELD_NAMES = {"terminals": "terminations", "timeouts": "truncations"}

# HDF5 crashes on a full disk, so writing stops while there is still this much space: more than what
# HDF5 holds back in its caches (32 MiB).
SPARE_BYTES = 64 * 2**20

# A path into nested observations, and the space of the array there.
_Leaf = tuple[tuple[str | int, ...], Any]


def open_id(dataset_id: str, *, download: bool = True) -> Source:
    """A dataset by its Minari id ("mujoco/hopper/medium-v0"), from Minari's own folder.

    Args:
        download: Fetch it if it is not there.

    Raises:
        UserError: if it cannot be had or read, or is not made of numbers.
    """
    minari = _imported()
    location, folder = f"minari:{dataset_id}", _folder(dataset_id)
    if not (folder / "data").is_dir():
        _fetch(dataset_id, folder, download)
    with _reading(location, folder), _quiet():
        dataset = minari.load_dataset(dataset_id)
        facts = dataset.storage.metadata.get(KEY)
    observed = list(_leaves(location, "observations", dataset.observation_space))
    acted = list(_leaves(location, "actions", dataset.action_space))
    units = Features()  # our own files have actions in [−1, 1]
    if facts is None:
        units = _features(location, observed, acted)
        spec = dataset.env_spec
        described = {"name": dataset_id, "environment": spec and spec.id, "features": units}
    else:
        described = from_facts(location, facts)

    def blocks(rows: int | None) -> Iterator[Steps]:
        held: list[Steps] = []
        count = 0
        with _reading(location, folder):
            for episode in dataset.iterate_episodes():
                if not len(episode.rewards):
                    continue
                held.append(_steps(location, episode, observed, acted, units))
                count += len(episode.rewards)
                if rows is not None and count >= rows:
                    yield from _pieces(held, rows)
                    held, count = [], 0
            if held:
                yield from _pieces(held, rows or count)

    return Source(location=location, blocks=blocks, field_names=FIELD_NAMES, **described)


def _steps(
    location: str, episode: Any, observed: list[_Leaf], acted: list[_Leaf], units: Features
) -> Steps:
    where = f"{location}, episode {episode.id}"
    observations, actions = _flat(episode.observations, observed), _flat(episode.actions, acted)
    terminals, timeouts = np.asarray(episode.terminations), np.array(episode.truncations)
    following = (episode.infos or {}).get(NEXT_OBSERVATIONS, observations[1:])
    lengths = {
        "actions": len(actions),
        "observations after the first": len(observations) - 1,
        "rewards": len(episode.rewards),
        "terminations": len(terminals),
        "truncations": len(timeouts),
        NEXT_OBSERVATIONS: len(following),
    }
    # Here and not later: two episodes that are wrong in opposite ways would seem right together.
    checks.same_length(where, lengths)
    if units.action_low:
        low, high = np.asarray(units.action_low), np.asarray(units.action_high)
        beyond = np.maximum(low - actions, actions - high) > ACTION_TOLERANCE * (high - low)
        if beyond.any():
            row, column = np.argwhere(beyond)[0]
            raise UserError(
                f"{where}: number {column} of the action is {actions[row, column]:g} at step {row},"
                f" but its action space is [{low[column]:g}, {high[column]:g}]. Correct the bounds "
                "of the space in the dataset's metadata.json, or create the dataset anew with "
                "clipped actions."
            )
        actions = units.to_unit_range(actions)
    if not terminals[-1]:
        timeouts[-1] = True
    return Steps(observations[:-1], actions, episode.rewards, terminals, timeouts, following)


def _pieces(episodes: list[Steps], rows: int) -> Iterator[Steps]:
    """Episodes one after another, at most so many rows at a time."""
    joined = [np.concatenate(arrays) for arrays in zip(*episodes, strict=True)]
    for first in range(0, len(joined[0]), rows):
        yield Steps(*(array[first : first + rows] for array in joined))


def _leaves(
    location: str, field: str, space: Any, path: tuple[str | int, ...] = ()
) -> Iterator[_Leaf]:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        for key in sorted(space.spaces):
            yield from _leaves(location, field, space.spaces[key], (*path, key))
    elif isinstance(space, spaces.Tuple):
        for i, inner in enumerate(space.spaces):
            yield from _leaves(location, field, inner, (*path, i))
    elif isinstance(space, spaces.Box) and space.dtype != np.uint8:
        yield path, space
    else:
        where = f" at {'/'.join(map(str, path))}" if path else ""
        raise UserError(
            f"{location}: its {field} are {space}{where}; only spaces of continuous numbers (Box) "
            "can be used, not categories, texts or images. Choose another dataset, or convert it "
            "to numbers first."
        )


def _flat(values: Any, leaves: list[_Leaf]) -> NDArray[Any]:
    arrays = []
    for path, space in leaves:
        array = values
        for key in path:
            array = array[key]
        arrays.append(np.reshape(array, (len(array), math.prod(space.shape))))
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)


def _features(location: str, observed: list[_Leaf], acted: list[_Leaf]) -> Features:
    features = Features(observations=_names(observed), actions=_names(acted))
    low = np.concatenate([space.low.ravel() for _, space in acted]).astype(np.float64)
    high = np.concatenate([space.high.ravel() for _, space in acted]).astype(np.float64)
    if not np.isfinite([low, high]).all() or ((low == -1).all() and (high == 1).all()):
        return features
    return features.with_range(location, low, high)


def _names(leaves: list[_Leaf]) -> tuple[str, ...]:
    """None for a plain array, which has no names to give."""
    return tuple(
        "_".join(map(str, (*path, i)))
        for path, space in leaves
        if path
        for i in range(math.prod(space.shape))
    )


def write(dataset_id: str, stream: Stream, *, overwrite: bool = False) -> None:
    """Create a dataset in Minari's own folder, an episode at a time, nothing lost.

    Actions are written as they are, in [−1, 1]; their units, and whatever else Minari has no place
    for, stand under the key "acpo" of the dataset's metadata. The dataset appears complete or not
    at all.

    Args:
        overwrite: Replace a dataset of this id.

    Raises:
        UserError: if the id exists or cannot be written, or what the stream raises.
    """
    minari = _imported()
    from minari.dataset.minari_storage import MinariStorage
    from minari.namespace import create_namespace, list_local_namespaces

    target = _folder(dataset_id)
    if target.exists() and not (overwrite and (target / "data" / "metadata.json").exists()):
        raise UserError(
            f"Minari's dataset '{dataset_id}' exists already in {target}. Choose another version, "
            f"or remove it with `minari delete {dataset_id}`."
        )
    episodes = by_episode(stream.blocks)
    first = next(episodes)
    # Beside the datasets and hidden, where Minari does not look.
    root = target.parents[dataset_id.count("/")]
    temporary = root / f".{dataset_id.replace('/', '.')}.{os.getpid()}.part"
    try:
        temporary.mkdir(parents=True)
        with _quiet():
            storage = MinariStorage.new(
                temporary / "data",
                observation_space=_box(np.inf, first.observations),
                action_space=_box(1.0, first.actions),
                env_spec=_spec(stream.environment),
            )
            storage.update_episodes(_buffers(chain([first], episodes), temporary))
            storage.update_metadata(
                {
                    "dataset_id": dataset_id,
                    "minari_version": minari.__version__,
                    KEY: to_facts(stream),
                }
            )
            namespace = dataset_id.rpartition("/")[0]
            if namespace and namespace not in list_local_namespaces():
                create_namespace(namespace)
        replace_folder(temporary, target)
    except OSError as error:
        raise unwritable(f"minari:{dataset_id} in {root}", error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _buffers(episodes: Iterable[Transitions], folder: Path) -> Iterator[Any]:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    for rows in episodes:
        size = sum(array.nbytes for array in rows)
        # Twice, for HDF5 rounds up and has tables of its own.
        if shutil.disk_usage(folder).free < 2 * size + SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        timeouts = np.zeros_like(rows.terminals)
        timeouts[-1] = not rows.terminals[-1]
        # By their bytes, to which 0 and -0 differ.
        chained = rows.observations[1:].tobytes() == rows.next_observations[:-1].tobytes()
        yield EpisodeBuffer(
            observations=np.concatenate([rows.observations, rows.next_observations[-1:]]),
            actions=rows.actions,
            rewards=rows.rewards,
            terminations=rows.terminals,
            truncations=timeouts,
            infos=None if chained else {NEXT_OBSERVATIONS: rows.next_observations},
        )


def _box(bound: float, like: NDArray[np.float32]) -> Any:
    from gymnasium.spaces import Box

    return Box(-bound, bound, like.shape[1:], np.float32)


def _spec(environment: str | None) -> Any:
    """What lets Minari recover the environment, if Gymnasium knows it."""
    import gymnasium

    # Not gymnasium.spec: it would import a module that the name of an environment mentions.
    spec = gymnasium.registry.get(environment) if environment else None
    try:
        return spec if spec is not None and spec.to_json() else None
    except (TypeError, ValueError):
        return None


def _imported() -> Any:
    try:
        with _quiet():
            import minari
    except ImportError as error:
        raise UserError(
            "Minari datasets need the package minari: pip install 'acpo[minari]'."
        ) from error
    return minari


def _folder(dataset_id: str) -> Path:
    """Where Minari keeps a dataset."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage import get_dataset_path

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"'{dataset_id}' is no Minari id; they look like mujoco/hopper/medium-v0, with a "
            "version at the end."
        ) from error
    try:
        return get_dataset_path(dataset_id)
    except OSError as error:
        raise UserError(
            f"Minari's folder cannot be made: {error}. Set MINARI_DATASETS_PATH to another."
        ) from error


def _fetch(dataset_id: str, folder: Path, download: bool) -> None:
    problem = "and was not to be downloaded"
    if download:
        new = not folder.exists()
        try:
            # What it prints is progress, and not our output.
            with _quiet(), contextlib.redirect_stdout(sys.stderr):
                _imported().download_dataset(dataset_id)
            return
        except BaseException as error:
            # Half a dataset would look like a whole one.
            if new:
                shutil.rmtree(folder, ignore_errors=True)
            if not isinstance(error, Exception):
                raise
            problem = f"and could not be downloaded ({error or type(error).__name__})"
    raise UserError(
        f"Minari's dataset '{dataset_id}' is not in {folder} {problem}. Where there is a network, "
        f"run `minari download {dataset_id}`; otherwise copy the dataset to that folder."
    )


@contextlib.contextmanager
def _reading(location: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f"{location} cannot be read: {error}.") from error
    # Depending on the byte that is wrong, h5py and Minari raise almost anything.
    except Exception as error:
        raise UserError(
            f"{location} cannot be read from {folder}: it is damaged or incomplete. Download or "
            f"create it again. (Minari says: {error!r})"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings: Minari's are advice to whoever publishes datasets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
