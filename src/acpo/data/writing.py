"""What the writers share: where episodes end, and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acpo.data.features import Features
from acpo.data.pairing import Episodes, Transitions
from acpo.data.source import Stream
from acpo.errors import UserError


def ends(blocks: Iterable[Transitions]) -> Iterator[tuple[Transitions, NDArray[np.bool_]]]:
    """Each block that has rows, with a flag per row: is it the last of its episode?

    Whether a block's last row is one shows only in the next block, so blocks come one late.

    Raises:
        UserError: if no block has rows.
    """
    held: Transitions | None = None
    for block in blocks:
        if not len(block.rewards):
            continue
        if held is not None:
            yield held, _last(held.episode_ids, block.episode_ids[:1])
        held = block
    if held is None:
        raise UserError("The dataset has no transitions, so there is nothing to write.")
    yield held, _last(held.episode_ids, np.asarray([-1]))


def _last(ids: NDArray[np.int32], following: NDArray[Any]) -> NDArray[np.bool_]:
    return ids != np.concatenate([ids[1:], following])


def by_episode(blocks: Iterable[Transitions]) -> Iterator[Transitions]:
    """The same rows, one episode at a time."""
    begun: list[Transitions] = []
    for block, last in ends(blocks):
        first = 0
        for after in (np.flatnonzero(last) + 1).tolist():
            begun.append(_rows(block, slice(first, after)))
            yield Transitions(*map(np.concatenate, zip(*begun, strict=True)))
            begun, first = [], after
        if first < len(last):
            begun.append(_rows(block, slice(first, None)))


def _rows(block: Transitions, chosen: slice) -> Transitions:
    fields: Any = (array[chosen] for array in block)
    return Transitions(*fields)


def to_facts(stream: Stream) -> dict[str, Any]:
    """What other layouts have no place for, as JSON; to be asked after the last block.

    Every float comes back exactly: Python writes as many digits as that takes.
    """
    table = stream.episodes()._asdict()
    return {
        "name": stream.name,
        "environment": stream.environment,
        "features": stream.features.to_json(),
        "episodes": {field: array.tolist() for field, array in table.items()},
    }


def from_facts(location: str, facts: Any) -> dict[str, Any]:
    """What `to_facts` gave, as fields of a `Source`."""
    try:
        name, environment = facts["name"], facts["environment"]
        if not isinstance(name, str) or not isinstance(environment, str | None):
            raise TypeError("its name is not a text")
        features = Features.from_json(facts["features"])
        table = [facts["episodes"][field] for field in Episodes._fields]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{location}: the description that acpo stored in it is damaged ({error!r}). Convert "
            "the data again."
        ) from error
    return {
        "name": name,
        "environment": environment,
        "features": features,
        "episodes": stored_episodes(location, *table),
    }


def stored_episodes(location: str, returns: Any, lengths: Any, rows: Any) -> Episodes:
    """A table of episodes as it was found in a file, if it can be one."""
    try:
        totals = np.asarray(returns, dtype=np.float64)
        counts = [np.asarray(values) for values in (lengths, rows)]
        sound = (
            totals.ndim == 1
            and all(count.shape == totals.shape and count.dtype.kind in "iu" for count in counts)
            and np.isfinite(totals).all()
            and (counts[1] >= 0).all()
            and (counts[0] >= np.maximum(counts[1], 1)).all()
        )
    except (TypeError, ValueError, OverflowError):
        sound = False
    if not sound:
        raise UserError(
            f"{location}: its table of episodes is damaged. Write the file again, or delete that "
            "table."
        )
    return Episodes(totals, *(count.astype(np.int64) for count in counts))


@contextlib.contextmanager
def part(path: Path) -> Iterator[Path]:
    """A sibling of `path` to write; it takes that place when all went well, and else it is gone.

    Its name is one that `acpo.files.sweep` knows, should the process be killed.
    """
    temporary = hidden(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        # Gone already when all went well; where the folder itself is at fault, nothing to remove.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def hidden(path: Path, kind: str = "") -> Path:
    """Where the parts of `path` are written."""
    return path.with_name(f".{path.name}.{os.getpid()}{kind}.part")


def replace_folder(new: Path, path: Path) -> None:
    """Rename the folder `new` to `path`, in place of what is there."""
    old = hidden(path, ".old")
    if path.exists():
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def unwritable(target: object, error: BaseException) -> UserError:
    said = (error.strerror if isinstance(error, OSError) else None) or error
    return UserError(
        f"Could not write {target}: {said}. Free some space or choose another place; what was "
        "there before is intact."
    )


class HDF5File(io.FileIO):
    """A file whose failures HDF5 never hears of.

    HDF5 crashes the process when a write fails, on a full disk say, because closing the file
    writes again. Here the first failure is kept, what follows goes nowhere, and `check` raises.
    """

    failure: BaseException | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while self.failure is None and len(left):
            try:
                left = left[super().write(left) :]
            except Exception as error:
                self.failure = error
        return size

    def readinto(self, buffer: Any) -> int:
        space, found = memoryview(buffer).cast("B"), 0
        try:
            found = super().readinto(buffer) or 0
        except Exception as error:
            self.failure = self.failure or error
        space[found:] = bytes(len(space) - found)  # what was never written
        return len(space)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except Exception as error:
            self.failure = self.failure or error
        return size or 0

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure
