"""From rows, as a source has them, to transitions: which row follows which, and which has no next.

The only place that decides where an episode ends. Rows come in blocks, so that a source larger
than memory goes through the same code; where the blocks are cut changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acpo.data import checks
from acpo.errors import UserError

MIN_TRANSITIONS = 2


class Steps(NamedTuple):
    """Consecutive rows of a source, as they stand in it; anything numpy can turn into arrays.

    Either every block of a source has `next_observations` or none has, and likewise `timeouts`.
    """

    observations: Any
    actions: Any
    rewards: Any
    terminals: Any
    timeouts: Any = None
    next_observations: Any = None


class Transitions(NamedTuple):
    """Checked rows, each with its successor."""

    observations: NDArray[np.float32]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float32]
    next_observations: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    episode_ids: NDArray[np.int32]


class Episodes(NamedTuple):
    """Facts about the E episodes of a source that its transitions alone do not tell.

    A cut-off episode's last row has no successor and is no transition, yet its reward counts in
    the return.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]
    """Transitions of each; 0 for an episode that was a single cut-off row."""

    @property
    def ids(self) -> NDArray[np.int32]:
        """The episode of each transition."""
        return np.repeat(np.arange(len(self.rows), dtype=np.int32), self.rows)


class Pairing:
    """Feed the blocks of a source in order, then `close`.

    An episode ends at a terminal, at a timeout, and at the end of the source. A row flagged as
    both is a terminal: D4RL sets a timeout only where the environment did not end by itself.

    With `next_observations` every row is kept. Without, row i is paired with row i+1 of its
    episode; a terminal row is kept, with its own observation as a placeholder, and the last row of
    an episode that was cut off is dropped, for nobody knows what followed.

    Args:
        source: What error messages call the source.
        field_names: What the source calls a field, where it differs; used in error messages.
        keep_constant: Accept observation columns that never change.
        column_names: Names of the observation's numbers, where the source has them.

    Raises:
        UserError: naming the source, the field, the first bad row and the remedy.
    """

    def __init__(
        self,
        source: str,
        field_names: Mapping[str, str] | None = None,
        keep_constant: bool = False,
        column_names: Sequence[str] = (),
    ) -> None:
        self.source, self._names, self._keep_constant = source, field_names or {}, keep_constant
        self._column_names = column_names
        self._fed = 0  # rows seen
        self._made = 0  # transitions made
        self._ended = False  # has any row ended an episode?
        self._open = False  # is the last episode still going on?
        self._held: Steps | None = None  # a row that waits for its successor
        self._low: NDArray[np.float32] | None = None
        self._high: NDArray[np.float32] | None = None
        self._returns = np.zeros(0, dtype=np.float64)
        self._lengths = np.zeros(0, dtype=np.int64)
        self._rows = np.zeros(0, dtype=np.int64)

    def called(self, field: str) -> str:
        return self._names.get(field, field)

    def feed(self, steps: Steps) -> Transitions:
        """The transitions that are complete now. Arrays that need no change are not copied."""
        obs, act, rew, ended, cut, nxt = self._checked(steps)
        last = ended | cut
        ids = self._account(rew, last)
        self._fed += len(obs)
        if nxt is None:
            obs, act, rew, nxt, ended, ids = self._paired(obs, act, rew, ended, last, ids)
        self._made += len(obs)
        self._rows = np.bincount(ids, minlength=len(self._returns)) + _padded(
            self._rows, len(self._returns)
        )
        if len(obs) and not self._keep_constant:
            low, high = checks.column_range(obs)
            self._low = low if self._low is None else np.minimum(self._low, low)
            self._high = high if self._high is None else np.maximum(self._high, high)
        return Transitions(obs, act, rew, nxt, ended, ids)

    def close(self) -> Episodes:
        """Facts of all episodes, once the source has no more rows."""
        obs, ends = self.called("observations"), self.called("timeouts")
        if self._fed == 0:
            raise UserError(f"{self.source}: the dataset is empty, '{obs}' has no rows.")
        if not self._ended:
            raise UserError(
                f"{self.source}: no row of '{self.called('terminals')}' or '{ends}' is true, so "
                f"episodes cannot be told apart. Add a boolean array '{ends}' that is true at each "
                "episode's last row."
            )
        if self._made < MIN_TRANSITIONS:
            raise UserError(
                f"{self.source}: '{obs}' has {self._fed:,} rows, which give {self._made} "
                f"transitions; training needs at least {MIN_TRANSITIONS}. Collect more steps. (The "
                f"last row of a cut-off episode counts only if '{self.called('next_observations')}'"
                " is stored.)"
            )
        if self._low is not None and self._high is not None:
            checks.varying_columns(self.source, obs, self._low, self._high, self._column_names)
        return Episodes(self._returns, self._lengths, self._rows)

    def _checked(self, steps: Steps) -> tuple[Any, Any, Any, Any, Any, Any]:
        at, called = (self.source, self._fed), self.called
        obs = checks.matrix(self.source, called("observations"), steps.observations)
        act = checks.matrix(self.source, called("actions"), steps.actions)
        rew = checks.vector(self.source, called("rewards"), steps.rewards)
        ended = checks.flags(*at, called("terminals"), steps.terminals)
        cut = np.zeros_like(ended)
        if steps.timeouts is not None:
            cut = checks.flags(*at, called("timeouts"), steps.timeouts)
        fields = {"observations": obs, "actions": act, "rewards": rew}
        nxt = None
        if steps.next_observations is not None:
            nxt = checks.matrix(self.source, called("next_observations"), steps.next_observations)
            fields["next_observations"] = nxt
            if nxt.shape[1] != obs.shape[1]:
                raise UserError(
                    f"{self.source}: '{called('next_observations')}' has {nxt.shape[1]} columns but"
                    f" '{called('observations')}' has {obs.shape[1]}; store both in the same "
                    "layout."
                )
        lengths = {called(field): len(array) for field, array in fields.items()}
        lengths |= {called("terminals"): len(ended), called("timeouts"): len(cut)}
        checks.same_length(self.source, lengths)
        for field, array in fields.items():
            checks.finite(*at, called(field), array)
        return obs, checks.unit_range(*at, called("actions"), act), rew, ended, cut, nxt

    def _account(self, rew: Any, last: Any) -> NDArray[np.int32]:
        """Add the rows to their episodes; returns the episode of each."""
        if not len(rew):
            return np.zeros(0, dtype=np.int32)
        self._ended |= bool(last.any())
        first = len(self._returns) - self._open
        ids = np.zeros(len(rew), dtype=np.int32)
        np.cumsum(last[:-1], out=ids[1:])
        count = int(ids[-1]) + 1
        # bincount adds one after another, so that a return does not depend on the blocks' borders.
        begun, weights = ids, rew
        if self._open:
            begun = np.concatenate([[0], ids])
            weights = np.concatenate([self._returns[-1:], rew])
        returns = np.bincount(begun, weights=weights, minlength=count)
        lengths = np.bincount(ids, minlength=count)
        if self._open:
            lengths[0] += self._lengths[-1]
        self._returns = np.concatenate([self._returns[:first], returns])
        self._lengths = np.concatenate([self._lengths[:first], lengths])
        self._open = not last[-1]
        return ids + np.int32(first)

    def _paired(
        self, obs: Any, act: Any, rew: Any, ended: Any, last: Any, ids: Any
    ) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Pair each row with the next one; a row whose episode goes on beyond the block waits."""
        if self._held is not None and len(obs):
            held = self._held
            obs, act = np.concatenate([held.observations, obs]), np.concatenate([held.actions, act])
            rew = np.concatenate([held.rewards, rew])
            ended, last = (np.concatenate([[False], flags]) for flags in (ended, last))
            ids = np.concatenate([ids[:1], ids])  # it is still going on, so it is the same episode
            self._held = None
        keep = ended | ~last
        if len(obs) and not last[-1]:
            # Copies: a view would keep the whole block alive.
            self._held = Steps(obs[-1:].copy(), act[-1:].copy(), rew[-1:].copy(), False)
            keep[-1] = False
        rows = np.flatnonzero(keep)
        # take is twice as fast as indexing by an array.
        nxt = obs.take(np.where(ended[rows], rows, rows + 1), axis=0)
        if len(rows) < len(obs):
            obs, act, rew, ended, ids = (x.take(rows, axis=0) for x in (obs, act, rew, ended, ids))
        return obs, act, rew, nxt, ended, ids


def _padded(counts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    return np.concatenate([counts, np.zeros(length - len(counts), dtype=np.int64)])
