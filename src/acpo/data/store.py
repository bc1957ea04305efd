"""Our own store: a folder with one packed row per transition, read through a memory map.

    X.acpo/header.json    sizes, names, units, environment, fingerprint
    X.acpo/rows.bin       float32 [N, 2s + a + 1]: s, s', a, r
    X.acpo/terminals.bin  bool [N]
    X.acpo/episodes.npz   return, length and number of rows of each episode

A transition stands in one piece, so that gathering a batch touches one place per row. Nothing is
compressed: rows are read where they lie, and a dataset may be larger than memory.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from acpo.data.dataset import Dataset, Fingerprint
from acpo.data.features import Features
from acpo.data.pairing import Episodes
from acpo.data.source import Stream
from acpo.data.writing import hidden, unwritable
from acpo.errors import UserError
from acpo.files import load_arrays, read_json, save_arrays, write_json

SUFFIX = ".acpo"
FORMAT = "acpo-store-1"


def write(path: Path, stream: Stream) -> None:
    """Write a stream as a store; the folder appears complete or not at all."""
    with _folder(path) as folder:
        digest, sizes, rows = Fingerprint(), (0, 0), 0
        with (folder / "rows.bin").open("wb") as body, (folder / "terminals.bin").open("wb") as end:
            for block in stream.blocks:
                columns = (block.observations, block.next_observations, block.actions)
                packed = np.concatenate([*columns, block.rewards[:, None]], axis=1)
                body.write(np.ascontiguousarray(packed, np.float32).data)
                end.write(np.ascontiguousarray(block.terminals).data)
                digest.add(block)
                sizes = (block.observations.shape[1], block.actions.shape[1])
                rows += len(packed)
        if not rows:
            raise UserError("The dataset has no transitions, so there is nothing to write.")
        episodes = stream.episodes()
        save_arrays(folder / "episodes.npz", episodes._asdict(), {})
        write_json(
            folder / "header.json",
            {
                "format": FORMAT,
                "name": stream.name,
                "rows": rows,
                "observation_dim": sizes[0],
                "action_dim": sizes[1],
                "environment": stream.environment,
                "features": stream.features.to_json(),
                "fingerprint": digest.finish(episodes),
            },
        )


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """A folder that takes its name only when everything in it is written."""
    if path.exists():
        raise UserError(f"{path} exists already; choose another name or remove it first.")
    temporary = hidden(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_store(path: Path) -> bool:
    return (path / "header.json").is_file()


def load(path: Path) -> Dataset:
    """A dataset whose rows stay on disk. Nothing but sizes is checked: it was when written."""
    header = read_json(path / "header.json")
    arrays, _ = load_arrays(path / "episodes.npz")
    try:
        if header["format"] != FORMAT:
            raise UserError(f"{path} has format {header['format']!r}; this version reads {FORMAT}.")
        count, s, a = (int(header[name]) for name in ("rows", "observation_dim", "action_dim"))
        features = Features.from_json(header["features"])
        fingerprint, name = str(header["fingerprint"]), str(header["name"])
        environment = header["environment"]
        episodes = Episodes(*(arrays[field] for field in Episodes._fields))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is a damaged store: {error!r} in its header.") from error
    rows = _mapped(path / "rows.bin", np.float32, (count, 2 * s + a + 1))
    terminals = np.array(_mapped(path / "terminals.bin", np.bool_, (count,)))
    if int(episodes.rows.sum()) != count or s < 1 or a < 1:
        raise UserError(f"{path} is a damaged store: its episodes do not add up to {count:,} rows.")
    data = Dataset(
        name=name,
        observations=rows[:, :s],
        next_observations=rows[:, s : 2 * s],
        actions=rows[:, 2 * s : 2 * s + a],
        rewards=rows[:, -1],
        terminals=terminals,
        episode_ids=episodes.ids,
        episode_returns=episodes.returns,
        episode_lengths=episodes.lengths,
        environment=environment if isinstance(environment, str) else None,
        source=str(path),
        features=features,
        mapping=rows,
    )
    # Known since it was written; computing it anew would read everything.
    data.__dict__["fingerprint"] = fingerprint
    return data


def _mapped(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    expected = int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        found = path.stat().st_size
        if found != expected:
            raise UserError(
                f"{path} has {found:,} bytes where its header promises {expected:,}: it was cut "
                "short or changed. Convert the data again."
            )
        return np.memmap(path, dtype, "r", shape=shape)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}. Convert the data again.") from error
