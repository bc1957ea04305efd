"""The one form every dataset takes, and the one place where arrays become it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from acpo.data import checks
from acpo.errors import UserError

ConstantColumns = Literal["refuse", "keep"]

MIN_TRANSITIONS = 2


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
        digest = hashlib.sha256()
        for array in (
            self.observations,
            self.actions,
            self.rewards,
            self.next_observations,
            self.terminals,
            self.episode_ids,
            self.episode_returns,
        ):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]

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
    """Check arrays of one row per step and pair each row with its successor.

    An episode ends at a terminal, at a timeout, and at the end of the arrays. A row flagged as
    both is a terminal: D4RL sets a timeout only where the environment did not end by itself.

    With `next_observations` every row is kept. Without, row i is paired with row i+1 of its
    episode; a terminal row is kept, with its own observation as a placeholder, and the last row of
    an episode that was cut off is dropped, for nobody knows what followed. Its reward still counts
    in `episode_returns`.

    Args:
        constant_columns: Whether observation columns that never change are refused or kept.
        field_names: What the source calls a field, where it differs; used in error messages.

    Raises:
        UserError: naming the source, the field, the first bad row and the remedy.
    """

    def called(field: str) -> str:
        return (field_names or {}).get(field, field)

    obs = checks.matrix(source, called("observations"), observations)
    act = checks.matrix(source, called("actions"), actions)
    rew = checks.vector(source, called("rewards"), rewards)
    ended = checks.flags(source, called("terminals"), terminals)
    cut = np.zeros_like(ended)
    if timeouts is not None:
        cut = checks.flags(source, called("timeouts"), timeouts)
    fields = {"observations": obs, "actions": act, "rewards": rew}
    if next_observations is not None:
        nxt = checks.matrix(source, called("next_observations"), next_observations)
        fields["next_observations"] = nxt
        if nxt.shape[1] != obs.shape[1]:
            raise UserError(
                f"{source}: '{called('next_observations')}' has {nxt.shape[1]} columns but "
                f"'{called('observations')}' has {obs.shape[1]}; store both in the same layout."
            )
    lengths = {called(field): len(array) for field, array in fields.items()}
    lengths |= {called("terminals"): len(ended), called("timeouts"): len(cut)}
    checks.same_length(source, lengths)
    for field, array in fields.items():
        checks.finite(source, called(field), array)
    act = checks.unit_range(source, called("actions"), act)

    last = ended | cut
    if not last.any():
        raise UserError(
            f"{source}: no row of '{called('terminals')}' or '{called('timeouts')}' is true, so "
            f"episodes cannot be told apart. Add a boolean array '{called('timeouts')}' that is "
            "true at each episode's last row."
        )
    last[-1] = True
    starts = np.concatenate(([0], np.flatnonzero(last)[:-1] + 1))
    episode_lengths = np.diff(starts, append=len(obs))
    episode_ids = np.repeat(np.arange(len(starts), dtype=np.int32), episode_lengths)
    episode_returns = np.add.reduceat(rew, starts, dtype=np.float64)

    if next_observations is None:
        rows = np.flatnonzero(ended | ~last)
        nxt = obs[np.where(ended[rows], rows, rows + 1)]
        if len(rows) < len(obs):
            obs, act, rew = obs[rows], act[rows], rew[rows]
            ended, episode_ids = ended[rows], episode_ids[rows]
    if len(obs) < MIN_TRANSITIONS:
        raise UserError(
            f"{source}: '{called('observations')}' has {len(last):,} rows, which give {len(obs)} "
            f"transitions; training needs at least {MIN_TRANSITIONS}. Collect more steps. (The "
            f"last row of a cut-off episode counts only if '{called('next_observations')}' is "
            "stored.)"
        )
    if constant_columns == "refuse":
        checks.varying_columns(source, called("observations"), obs)

    return Dataset(
        name=name,
        observations=_read_only(obs),
        actions=_read_only(act),
        rewards=_read_only(rew),
        next_observations=_read_only(nxt),
        terminals=_read_only(ended),
        episode_ids=_read_only(episode_ids),
        episode_returns=_read_only(episode_returns),
        episode_lengths=_read_only(episode_lengths),
        environment=environment,
        source=source,
    )


def _share(fraction: float, total: int) -> int:
    """`fraction` of `total`, leaving at least one on each side."""
    return min(max(round(fraction * total), 1), total - 1)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    # A view: the fingerprint is cached, and the caller's own array must stay writable.
    view = array.view()
    view.flags.writeable = False
    return view
