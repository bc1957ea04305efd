"""Random logs for property-based tests, and the obvious way to read them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from acpo.data.pairing import Steps


class Log(NamedTuple):
    """Episodes of random lengths, each ended by a terminal or cut off, as flat arrays."""

    steps: Steps
    lengths: list[int]
    ended: list[bool]


@st.composite
def logs(draw: Any, *, with_next: bool | None = None, max_episodes: int = 6) -> Log:
    """A log that gives at least two transitions, however it is read."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=max_episodes))
    lengths.append(draw(st.integers(3, 6)))
    ended = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    stored = draw(st.booleans()) if with_next is None else with_next
    return make_log(lengths, ended, stored, draw(st.integers(0, 2**31)))


def make_log(lengths: list[int], ended: list[bool], stored: bool, seed: int) -> Log:
    """Random numbers in episodes of these lengths; `stored`: with next observations."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    last = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    terminals[last[ended]] = True
    timeouts[last[~np.asarray(ended)]] = True
    return Log(
        Steps(
            observations=rng.normal(size=(rows, 2)).astype(np.float32),
            actions=rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
            rewards=rng.normal(size=rows).astype(np.float32),
            terminals=terminals,
            timeouts=timeouts,
            next_observations=rng.normal(size=(rows, 2)).astype(np.float32) if stored else None,
        ),
        lengths,
        ended,
    )


def transitions(log: Log) -> list[tuple[Any, ...]]:
    """(s, a, r, s' or None at a terminal, terminal, episode), one episode after another."""
    found, first, steps = [], 0, log.steps
    for episode, (length, ended) in enumerate(zip(log.lengths, log.ended, strict=True)):
        for row in range(first, first + length):
            terminal = ended and row == first + length - 1
            if steps.next_observations is not None:
                following = steps.next_observations[row]
            elif terminal:
                following = None
            elif row + 1 < first + length:
                following = steps.observations[row + 1]
            else:
                continue  # cut off: nobody knows what followed
            found.append(
                (
                    steps.observations[row],
                    steps.actions[row],
                    steps.rewards[row],
                    following,
                    terminal,
                    episode,
                )
            )
        first += length
    return found


def assert_reads(data: Any, log: Log) -> None:
    """`data` (a Dataset or Transitions) holds exactly the transitions of `log`."""
    expected = transitions(log)
    assert len(data.observations) == len(expected)
    for row, (s, a, r, following, terminal, episode) in enumerate(expected):
        np.testing.assert_array_equal(data.observations[row], s)
        np.testing.assert_allclose(data.actions[row], a, atol=1e-6)
        assert data.rewards[row] == r
        if following is not None:
            np.testing.assert_array_equal(data.next_observations[row], following)
        assert data.terminals[row] == terminal
        assert data.episode_ids[row] == episode
