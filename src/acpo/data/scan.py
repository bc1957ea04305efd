"""What one pass over a dataset's rows tells, for the checks that look for problems in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from acpo.data.dataset import Dataset
from acpo.data.inspect import AT_BOUND, Moments, names
from acpo.data.pairing import Transitions

SHOWN = 5
"""How many rows or episodes are named as examples."""


class Scan:
    """What one pass over the rows tells; a check looks again only where this gives cause."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self.observations, self.actions = Moments(data.observation_dim), Moments(data.action_dim)
        self.at_bounds = np.zeros(data.action_dim, np.int64)
        # Per episode: how many rewards are not zero, and the sum of their logarithms.
        self.rewarded, self.log_rewards = np.zeros((2, data.num_episodes))
        self.chained = True
        ends, hashes = [], []
        first = 0
        for block in data.blocks():
            self.observations.add(block.observations)
            self.actions.add(block.actions)
            self.at_bounds += (np.abs(block.actions) >= AT_BOUND).sum(axis=0)
            nonzero, start = block.rewards != 0, block.episode_ids[0]
            ids, logs = block.episode_ids[nonzero] - start, np.log(np.abs(block.rewards[nonzero]))
            here = slice(start, block.episode_ids[-1] + 1)
            count = here.stop - here.start
            self.rewarded[here] += np.bincount(ids, minlength=count)
            self.log_rewards[here] += np.bincount(ids, weights=logs, minlength=count)
            ends.append(block.episode_ids[block.terminals])
            hashes.append(row_hashes(block))
            self.chained &= not len(breaks(data, first, len(block.rewards), 0.0))
            first += len(block.rewards)
        self.ended = np.concatenate(ends)  # episodes with a terminal
        self.hashes = np.concatenate(hashes)
        self.starts = np.cumsum(data.episodes.rows) - data.episodes.rows
        self.observation_names = names(
            data.features.observation_names, data.observation_dim, "observation"
        )
        self.action_names = names(data.features.actions, data.action_dim, "action")

    def first_rows(self, episodes: NDArray[Any]) -> tuple[int, ...]:
        """Where the first few of these episodes begin, in the source's count."""
        lengths = self.data.episode_lengths
        return tuple((np.cumsum(lengths) - lengths)[episodes[:SHOWN]].tolist())

    def source_rows(self, rows: NDArray[Any]) -> tuple[int, ...]:
        """The first few of these rows, in the source's count."""
        rows = rows[:SHOWN]
        episodes = self.data.episode_ids[rows]
        return tuple((self.first_rows(episodes) + rows - self.starts[episodes]).tolist())


def row_hashes(block: Transitions) -> NDArray[np.int64]:
    """64 bits of each row's (s, a, r, s'), by which rows are compared; in this process only."""
    parts = (block.observations, block.actions, block.rewards[:, None], block.next_observations)
    rows = np.concatenate(parts, axis=1) + np.float32(0)  # −0 becomes 0
    texts = rows.view(f"V{rows.dtype.itemsize * rows.shape[1]}")[:, 0].tolist()
    return np.fromiter(map(hash, texts), np.int64, len(texts))


def episode_hashes(scan: Scan) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Of the episodes with two rows or more, and which these are."""
    rows = scan.data.episodes.rows
    chosen = np.flatnonzero(rows > 1)
    texts = (scan.hashes[scan.starts[i] :][: rows[i]].tobytes() for i in chosen)
    return np.fromiter(map(hash, texts), np.int64, len(chosen)), chosen


def first_equal(hashes: NDArray[np.int64]) -> NDArray[np.intp]:
    """For each place, the first one with an equal hash."""
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    return first[which]


def breaks(data: Dataset, first: int, count: int, tolerance: Any) -> NDArray[np.intp]:
    """Rows among these whose successor is not the next row, though the episode goes on."""
    last = min(first + count, len(data) - 1)
    here, after = slice(first, last), slice(first + 1, last + 1)
    with np.errstate(over="ignore"):
        apart = np.abs(data.next_observations[here] - data.observations[after])
    goes_on = data.episode_ids[here] == data.episode_ids[after]
    return first + np.flatnonzero(goes_on & (apart > tolerance).any(axis=1))
