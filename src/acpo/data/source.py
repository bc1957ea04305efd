"""A dataset that has been opened but not read, and the stream of transitions that any gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from acpo.data.features import Features
from acpo.data.pairing import Episodes, Pairing, Steps, Transitions
from acpo.errors import UserError

if TYPE_CHECKING:
    from acpo.data.dataset import Dataset

BLOCK_ROWS = 65_536


@dataclass(frozen=True)
class Stream:
    """Transitions in order, a block at a time, for writers that never hold the whole set."""

    name: str
    environment: str | None
    features: Features
    blocks: Iterator[Transitions]
    episodes: Callable[[], Episodes]
    """Facts of all episodes; to be asked once `blocks` has no more."""


@dataclass(frozen=True)
class Source:
    """What a door gives for a file or a name; `read` makes the dataset, `stream` its blocks.

    Args:
        name: What results call the dataset.
        location: Path or name, for messages and for the record.
        blocks: Rows in order: at most so many at a time, or all at once if given None. It can be
            asked again for a second pass.
        field_names: What the source calls a field, where it differs; used in error messages.
        episodes: Facts of the episodes, where the source stores them (our own files do).
    """

    name: str
    location: str
    blocks: Callable[[int | None], Iterable[Steps]]
    environment: str | None = None
    features: Features = field(default_factory=Features)
    field_names: Mapping[str, str] | None = None
    episodes: Episodes | None = None

    def stream(self, rows: int | None = BLOCK_ROWS, *, keep_constant: bool = False) -> Stream:
        names = self.features.observation_names
        pairing = Pairing(self.location, self.field_names, keep_constant, names)
        return Stream(
            self.name,
            self.environment,
            self.features,
            self._transitions(pairing, rows),
            lambda: self._episodes(pairing),
        )

    def read(self, *, keep_constant: bool = False) -> Dataset:
        """The whole dataset in memory."""
        from acpo.data.dataset import from_stream

        return from_stream(self.stream(None, keep_constant=keep_constant), self.location)

    def with_scaled_actions(self) -> Source:
        """The same source with actions scaled to [−1, 1] by their least and largest values."""
        from acpo.data import checks

        if self.features.action_low:
            raise UserError(
                f"{self.location}: its actions are scaled by known bounds already; leave out "
                "scale_actions (--scale-actions)."
            )
        name = (self.field_names or {}).get("actions", "actions")
        low = high = None
        for steps in self.blocks(BLOCK_ROWS):
            actions = checks.matrix(self.location, name, steps.actions)
            if not len(actions):
                continue
            checks.finite(self.location, 0, name, actions)
            least, largest = actions.min(axis=0), actions.max(axis=0)
            low = least if low is None else np.minimum(low, least)
            high = largest if high is None else np.maximum(high, largest)
        if low is None or high is None:
            raise UserError(f"{self.location}: the dataset is empty, '{name}' has no rows.")
        features = self.features.with_range(self.location, low, high)

        def blocks(rows: int | None) -> Iterable[Steps]:
            for steps in self.blocks(rows):
                yield steps._replace(actions=features.to_unit_range(steps.actions))

        return dataclasses.replace(self, blocks=blocks, features=features)

    def _transitions(self, pairing: Pairing, rows: int | None) -> Iterator[Transitions]:
        stored = None if self.episodes is None else np.flatnonzero(self.episodes.rows)
        for steps in self.blocks(rows):
            made = pairing.feed(steps)
            if stored is not None:
                if len(made.episode_ids) and made.episode_ids[-1] >= len(stored):
                    raise self._damaged()
                made = made._replace(episode_ids=stored[made.episode_ids].astype(np.int32))
            yield made

    def _episodes(self, pairing: Pairing) -> Episodes:
        found = pairing.close()
        if self.episodes is None:
            return found
        kept = self.episodes.rows[self.episodes.rows > 0]
        if not np.array_equal(kept, found.rows):
            raise self._damaged()
        return self.episodes

    def _damaged(self) -> UserError:
        return UserError(
            f"{self.location}: its table of episodes does not fit its rows, so one of them was "
            "changed. Write the file again, or delete that table."
        )


def from_steps(steps: Steps, name: str, location: str, **facts: Any) -> Source:
    """A source whose rows are in memory already."""

    def blocks(rows: int | None) -> Iterator[Steps]:
        length = len(steps.observations)
        # Whole where that was asked for, and where the lengths differ, which the check then names.
        if rows is None or any(f is not None and len(f) != length for f in steps):
            yield steps
            return
        for first in range(0, length, rows):
            yield Steps(*(f if f is None else f[first : first + rows] for f in steps))

    return Source(name, location, blocks, **facts)
