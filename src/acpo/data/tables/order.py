"""In which order the rows of a table stand, and rows put in order without holding them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acpo.data.pairing import Steps
from acpo.errors import UserError

if TYPE_CHECKING:
    import polars as pl


class Order(NamedTuple):
    """What the ids and times of a part tell, once its rows are in order."""

    changed: NDArray[np.bool_]
    """Whether a row has another id than the row before it; true for the first."""
    later: NDArray[np.float64]
    """How much later it is than the row before it; NaN where `changed`, and without times."""
    rows: NDArray[np.intp] | None
    """The rows of the file in this order; None if they are in order already."""


class Keys:
    """The ids and times of a part, which are all of it that is held in memory: 12 bytes a row.

    Rows are sorted by the first row of their id and by time.

    Without an id, times that go back to what was there before are those of a clock that was set
    back or begins anew with each episode: sorting would mix what does not belong together, so these
    stay as they are.
    """

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._ids: list[NDArray[np.uint32]] = []
        self._times: list[NDArray[np.float64]] = []

    def add(self, frame: pl.DataFrame) -> None:
        """Take the columns `id` and `time` of the next rows, where there are such columns."""
        ids = np.zeros(len(frame), np.uint32)
        if "id" in frame.columns:
            column = frame["id"]
            begins = column.ne_missing(column.shift()).to_numpy().copy()
            begins[:1] = True
            # Looked up where the id changes only, as it is the same for long.
            known = (self._number(value) for value in column.filter(begins).to_list())
            ids = np.fromiter(known, np.uint32)[np.cumsum(begins) - 1]
        self._ids.append(ids)
        if "time" in frame.columns:
            self._times.append(frame["time"].to_numpy())

    def _number(self, value: object) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def close(self) -> Order:
        ids = np.concatenate([np.zeros(0, np.uint32), *self._ids])
        times = np.concatenate(self._times) if self._times else None
        self._ids, self._times = [], []
        order = _order(ids, times, len(self._numbers))
        changed, later = np.ones(len(ids), np.bool_), np.full(len(ids), np.nan)
        if order is not None:
            ids, times = ids[order], None if times is None else times[order]
        changed[1:] = ids[1:] != ids[:-1]
        if times is not None:
            later[1:] = np.where(changed[1:], np.nan, np.diff(times))
        return Order(changed, later, order)


def _order(
    ids: NDArray[np.uint32], times: NDArray[np.float64] | None, different: int
) -> NDArray[np.intp] | None:
    same = ids[1:] == ids[:-1]
    back = False
    if times is not None:
        back = bool((np.diff(times)[same] < 0).any())
        back = back and (different > 0 or len(np.unique(times)) == len(times))
    mixed = different > 0 and len(ids) - np.count_nonzero(same) > different
    if not mixed and not back:
        return None
    return np.lexsort((ids,) if times is None else (times, ids))


def reordered(blocks: Iterable[Steps], order: NDArray[np.intp], rows: int) -> Iterator[Steps]:
    """Blocks of `rows` rows in another order; only one of them is in memory.

    The rows that will stand in one block are gathered in one place of a file without a name, which
    is gone when this ends. There they stand as they came, so that `order` tells which is which.

    Args:
        order: The row of the source that comes first, the one that comes second, ….
    """
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    filled = np.arange(0, len(order), rows)  # the next free row of each block
    seen = 0
    try:
        with tempfile.TemporaryFile() as file:
            for steps in blocks:
                packed = _packed(steps)
                seen += len(packed)
                if seen > len(order):
                    break
                target = place[seen - len(packed) : seen] // rows
                by_target = np.argsort(target, kind="stable")
                cuts = np.flatnonzero(np.diff(target[by_target])) + 1
                for piece in np.split(by_target, cuts):
                    block = target[piece[0]]
                    file.seek(int(filled[block]) * packed.itemsize)
                    file.write(packed[piece].tobytes())
                    filled[block] += len(piece)
            if seen != len(order):
                raise UserError("The table was changed while it was read; try again.")
            for first in range(0, len(order), rows):
                here = order[first : first + rows]
                file.seek(first * packed.itemsize)
                content = file.read(len(here) * packed.itemsize)
                arrived = np.frombuffer(content, packed.dtype)
                yield _unpacked(arrived[np.argsort(np.argsort(here))])
    except OSError as error:
        raise UserError(
            f"The rows could not be put in order in {tempfile.gettempdir()}: "
            f"{error.strerror or error}. Free some space there, or set TMPDIR to another folder."
        ) from error


def _packed(steps: Steps) -> NDArray[np.void]:
    arrays = {field: array for field, array in steps._asdict().items() if array is not None}
    kinds = [(field, array.dtype, array.shape[1:]) for field, array in arrays.items()]
    packed = np.empty(len(steps.rewards), kinds)
    for field, array in arrays.items():
        packed[field] = array
    return packed


def _unpacked(packed: NDArray[np.void]) -> Steps:
    return Steps(**{field: packed[field] for field in packed.dtype.names or ()})
