"""The one form every dataset takes, and the one place where arrays become it."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acpo.data.features import Features
from acpo.data.options import ConstantColumns
from acpo.data.pairing import Episodes, Steps, Transitions
from acpo.data.source import BLOCK_ROWS, Stream, from_steps
from acpo.errors import UserError


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """N transitions in E episodes; made by `from_arrays`, which checks them. Arrays are read-only.

    Args:
        name: What results call this dataset.
        observations: float32 [N, s].
        actions: float32 [N, a], within [-1, 1].
        rewards: float32 [N].
        next_observations: float32 [N, s]. At a terminal it may be a placeholder: V(s') is masked.
        terminals: bool [N], a true end of the environment. A time limit is not a terminal.
        episode_ids: int32 [N], non-decreasing, indexing the two arrays below. An episode whose
            rows were all dropped keeps its place there and has no id here.
        episode_returns: float64 [E], of the source, before a last row without successor is dropped.
        episode_lengths: int64 [E], likewise of the source.
        environment: Gymnasium id such as "Hopper-v4", where the source names it.
        source: Path or name it was loaded from.
        features: Names, categories and units, where the source has them.
        validation: Episodes held out of this dataset, for choices that must not see its rows.
        mapping: The memory map behind the arrays, if they stay on disk.
    """

    name: str
    observations: NDArray[np.float32]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float32]
    next_observations: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    episode_ids: NDArray[np.int32]
    episode_returns: NDArray[np.float64]
    episode_lengths: NDArray[np.int64]
    environment: str | None
    source: str
    features: Features = field(default_factory=Features)
    validation: Dataset | None = None
    mapping: np.memmap | None = None

    def __len__(self) -> int:
        return len(self.observations)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {len(self):,} transitions in {self.num_episodes:,} episodes, "
            f"{self.observation_dim} observations, {self.action_dim} actions, "
            f"mean return {self.mean_return:.1f})"
        )

    @property
    def observation_dim(self) -> int:
        return int(self.observations.shape[1])

    @property
    def action_dim(self) -> int:
        return int(self.actions.shape[1])

    @property
    def num_episodes(self) -> int:
        return len(self.episode_returns)

    @property
    def mean_return(self) -> float:
        """Undiscounted return, averaged over the episodes of the source."""
        return float(self.episode_returns.mean())

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of the contents; two datasets that train alike share it, names aside."""
        digest = Fingerprint()
        for block in self.blocks():
            digest.add(block)
        return digest.finish(self.episodes)

    @property
    def episodes(self) -> Episodes:
        rows = np.bincount(self.episode_ids, minlength=self.num_episodes)
        return Episodes(self.episode_returns, self.episode_lengths, rows)

    def blocks(self, rows: int | None = BLOCK_ROWS) -> Iterator[Transitions]:
        """The transitions in order, at most `rows` at a time; all at once if that is None."""
        rows = rows or max(len(self), 1)
        for first in range(0, len(self), rows):
            chosen = slice(first, first + rows)
            yield Transitions(
                self.observations[chosen],
                self.actions[chosen],
                self.rewards[chosen],
                self.next_observations[chosen],
                self.terminals[chosen],
                self.episode_ids[chosen],
            )
            release(self.mapping)

    def stream(self, rows: int | None = BLOCK_ROWS) -> Stream:
        """What a writer takes."""
        return Stream(
            self.name, self.environment, self.features, self.blocks(rows), lambda: self.episodes
        )

    def split(self, fraction: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Row indices (train, held out); about `fraction` of the episodes are held out whole.

        Neighbouring rows are nearly equal, so a split by row would leak. Each side has at least
        one episode; a dataset of one episode holds out its last rows instead.
        """
        if not 0 < fraction < 1:
            raise UserError(f"The held-out fraction must be between 0 and 1, not {fraction:g}.")
        episodes = np.unique(self.episode_ids)
        if len(episodes) == 1:
            rows = np.arange(len(self))
            cut = len(self) - _share(fraction, len(self))
            return rows[:cut], rows[cut:]
        chosen = np.random.default_rng(seed).permutation(episodes)
        held_out = np.isin(self.episode_ids, chosen[: _share(fraction, len(episodes))])
        return np.flatnonzero(~held_out), np.flatnonzero(held_out)


class Fingerprint:
    """A digest of transitions that come block by block; the blocks' borders do not matter."""

    def __init__(self) -> None:
        self._fields = {name: hashlib.sha256() for name in Transitions._fields}
        self._kinds: dict[str, str] = {}

    def add(self, block: Transitions) -> None:
        for name, array in block._asdict().items():
            self._kinds[name] = f"{array.dtype}{array.shape[1:]}"
            self._fields[name].update(np.ascontiguousarray(array).data)

    def finish(self, episodes: Episodes) -> str:
        digest = hashlib.sha256(np.ascontiguousarray(episodes.returns).data)
        for name, field_digest in self._fields.items():
            digest.update(f"{name}{self._kinds.get(name)}".encode())
            digest.update(field_digest.digest())
        return digest.hexdigest()[:16]


def from_stream(stream: Stream, source: str) -> Dataset:
    """Hold a stream in memory. A single block is taken as it is, without a copy."""
    blocks = list(stream.blocks)
    episodes = stream.episodes()
    joined = (
        blocks[0]
        if len(blocks) == 1
        else Transitions(*map(np.concatenate, zip(*blocks, strict=True)))
    )
    fields: dict[str, Any] = {k: _read_only(v) for k, v in joined._asdict().items()}
    return Dataset(
        name=stream.name,
        **fields,
        episode_returns=_read_only(episodes.returns),
        episode_lengths=_read_only(episodes.lengths),
        environment=stream.environment,
        source=source,
        features=stream.features,
    )


def from_arrays(
    *,
    observations: Any,
    actions: Any,
    rewards: Any,
    terminals: Any,
    timeouts: Any = None,
    next_observations: Any = None,
    name: str,
    source: str,
    environment: str | None = None,
    constant_columns: ConstantColumns = "refuse",
    field_names: Mapping[str, str] | None = None,
) -> Dataset:
    """Check arrays of one row per step and pair each row with its successor, as `Pairing` says.

    Args:
        constant_columns: Whether observation columns that never change are refused or kept.
        field_names: What the source calls a field, where it differs; used in error messages.

    Raises:
        UserError: naming the source, the field, the first bad row and the remedy.
    """
    steps = Steps(observations, actions, rewards, terminals, timeouts, next_observations)
    opened = from_steps(steps, name, source, environment=environment, field_names=field_names)
    return opened.read(keep_constant=constant_columns == "keep")


def release(mapped: Any) -> None:
    """Let go of the pages that were read of a memory map; they come back when needed again.

    Pages that were read count as this process's memory until the system wants them back.
    """
    pages = getattr(mapped, "_mmap", None)
    if pages is not None and hasattr(pages, "madvise"):
        pages.madvise(mmap.MADV_DONTNEED)


def _share(fraction: float, total: int) -> int:
    """`fraction` of `total`, leaving at least one on each side."""
    return min(max(round(fraction * total), 1), total - 1)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    # A view: the fingerprint is cached, and the caller's own array must stay writable.
    view = array.view()
    view.flags.writeable = False
    return view
