"""Datasets from datasets: join, relabel rewards, choose episodes, hold episodes out.

Each once for data that stream, a block at a time, and by the same pieces for data in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acpo.data import expression
from acpo.data.dataset import Dataset, from_stream
from acpo.data.features import Features
from acpo.data.options import DataOptions
from acpo.data.pairing import MIN_TRANSITIONS, Episodes, Transitions
from acpo.data.source import Stream
from acpo.errors import UserError

SEED = 0


def apply(data: Dataset, options: DataOptions) -> Dataset:
    """What the options ask for: relabel, then choose the best, then a share, then hold out."""
    _check(options)
    if options.relabel is not None:
        data = relabel(data, options.relabel)
    if not options.choose_episodes:
        return data
    kept, held = _choose(data.episode_returns, data.episodes.rows, options, data.source)
    chosen = select(data, kept)
    return replace(chosen, validation=select(data, held)) if len(held) else chosen


def stream(opened: Callable[[], Stream], options: DataOptions, source: str) -> Stream:
    """What `apply` gives, but for the held-out episodes, a block at a time.

    Args:
        opened: The stream from its beginning. Where episodes are chosen it is asked for twice: a
            first pass learns their returns.
        source: What error messages call it.
    """
    _check(options)

    def relabelled() -> Stream:
        found = opened()
        if options.relabel is None:
            return found
        return _relabelled(found, options.relabel, source)

    first = relabelled()
    if not options.choose_episodes:
        return first
    kept = np.zeros(0, dtype=np.intp)

    def blocks() -> Iterator[Transitions]:
        nonlocal kept
        for _ in first.blocks:
            pass
        returns = first.episodes().returns
        kept, _ = _choose(returns, first.episodes().rows, options, source)
        for block in relabelled().blocks:
            yield _rows_of(block, kept, len(returns))

    def episodes() -> Episodes:
        whole = first.episodes()
        return Episodes(whole.returns[kept], whole.lengths[kept], whole.rows[kept])

    return replace(first, blocks=blocks(), episodes=episodes)


def concatenate(parts: Sequence[Dataset]) -> Dataset:
    """The episodes of all parts, one dataset after another; their validation sets likewise."""
    held_out = [part.validation for part in parts if part.validation is not None]
    whole = joined([part.stream(None) for part in parts])
    return replace(
        from_stream(whole, "+".join(part.source for part in parts)),
        validation=concatenate(held_out) if held_out else None,
    )


def joined(parts: Sequence[Stream]) -> Stream:
    """The episodes of all parts, one stream after another."""
    found: list[Episodes] = []

    def blocks() -> Iterator[Transitions]:
        sizes: dict[str, int] = {}
        for part in parts:
            offset = np.int32(sum(len(episodes.returns) for episodes in found))
            for block in part.blocks:
                here = {
                    "observation_dim": block.observations.shape[1],
                    "action_dim": block.actions.shape[1],
                }
                sizes = sizes or here
                _check_alike(parts[0], part, sizes, here)
                yield block._replace(episode_ids=block.episode_ids + offset)
            found.append(part.episodes())

    def episodes() -> Episodes:
        facts: Any = map(np.concatenate, zip(*found, strict=True))
        return Episodes(*facts)

    environments = {part.environment for part in parts}
    return Stream(
        "+".join(part.name for part in parts),
        environments.pop() if len(environments) == 1 else None,
        parts[0].features,
        blocks(),
        episodes,
    )


def select(data: Dataset, chosen: NDArray[np.intp]) -> Dataset:
    """The episodes of these numbers (ascending), in memory, renumbered."""
    whole = Transitions(*(getattr(data, name) for name in Transitions._fields))
    return replace(
        data,
        **_rows_of(whole, chosen, data.num_episodes)._asdict(),
        episode_returns=data.episode_returns[chosen],
        episode_lengths=data.episode_lengths[chosen],
        mapping=None,
    )


def take(data: Dataset, fraction: float, seed: int = SEED) -> Dataset:
    """A share of the episodes, drawn at random, in their order."""
    return select(data, _drawn(data.num_episodes, fraction, seed))


def relabel(data: Dataset, text: str) -> Dataset:
    """Replace the reward by an expression over reward, terminal, observation_0, action_0, ….

    Columns that have names can be written by them, actions in their units (action_0: within
    [−1, 1]). Returns are those of the kept rows: the reward
    of a dropped last row cannot be relabelled.
    """
    changed = _relabelled(data.stream(), text, data.source)
    rewards = np.concatenate([block.rewards for block in changed.blocks])
    validation = None if data.validation is None else relabel(data.validation, text)
    returns = changed.episodes().returns
    return replace(data, rewards=rewards, episode_returns=returns, validation=validation)


def _relabelled(stream: Stream, text: str, source: str) -> Stream:
    returns = np.zeros(0)

    def blocks() -> Iterator[Transitions]:
        nonlocal returns
        first = 0
        for block in stream.blocks:
            rewards = expression.evaluate(text, _columns(block, stream.features)).astype(np.float32)
            bad = ~np.isfinite(rewards)
            if bad.any():
                raise UserError(
                    f"{source}: the reward '{text}' is {rewards[bad][0]} at row "
                    f"{first + bad.argmax()}; change the expression so that it is a number "
                    "everywhere."
                )
            first += len(rewards)
            returns = _padded(returns, block.episode_ids.max(initial=-1) + 1)
            # One after another, so that a return does not depend on the blocks' borders.
            np.add.at(returns, block.episode_ids, rewards.astype(np.float64))
            yield block._replace(rewards=rewards)

    def episodes() -> Episodes:
        found = stream.episodes()
        return found._replace(returns=_padded(returns, len(found.returns)))

    return replace(stream, blocks=blocks(), episodes=episodes)


def _columns(block: Transitions, features: Features) -> dict[str, NDArray[Any]]:
    """What an expression may name. The data's own names come before ours, its actions in its units;
    reward and terminal are always those of the data."""
    columns: dict[str, NDArray[Any]] = {}
    for kind in ("observation", "action", "next_observation"):
        matrix = getattr(block, f"{kind}s")
        columns |= {f"{kind}_{i}": matrix[:, i] for i in range(matrix.shape[1])}
    own = (
        (features.observation_names, block.observations),
        (features.actions, features.to_units(block.actions)),
    )
    for names, matrix in own:
        columns |= {name: matrix[:, i] for i, name in enumerate(names)}
    return {**columns, "reward": block.rewards, "terminal": block.terminals}


def _padded(returns: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    return np.concatenate([returns, np.zeros(max(length - len(returns), 0))])


def _rows_of(block: Transitions, chosen: NDArray[np.intp], episodes: int) -> Transitions:
    """The rows of the chosen among so many episodes, renumbered."""
    numbers = np.full(episodes, -1, dtype=np.int32)
    numbers[chosen] = np.arange(len(chosen))
    rows = np.flatnonzero(numbers[block.episode_ids] >= 0)
    fields: Any = (array[rows] for array in block)
    found = Transitions(*fields)
    return found._replace(episode_ids=numbers[found.episode_ids])


def _choose(
    returns: NDArray[np.float64], rows: NDArray[Any], options: DataOptions, source: str
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The numbers of the episodes to keep, and of those to hold out, ascending."""
    kept = np.arange(len(returns))
    if options.top != 100:
        best = np.argsort(-returns, kind="stable")
        kept = np.sort(best[: _share(len(kept), options.top / 100)])
    if options.take != 1:
        kept = kept[_drawn(len(kept), options.take, SEED)]
    held = kept[:0]
    if options.validation != 0:
        if len(kept) < 2:
            raise UserError(f"{source}: a single episode cannot be split for --validation.")
        held = kept[_drawn(len(kept), options.validation, SEED)][: len(kept) - 1]
    kept = np.setdiff1d(kept, held)
    # An episode of one row has no transition.
    for what, chosen, least in (("kept", kept, MIN_TRANSITIONS), ("held out", held, 1)):
        if len(chosen) and rows[chosen].sum() < least:
            raise UserError(
                f"{source}: of {len(returns):,} episodes {len(chosen):,} would be {what}, with "
                f"{rows[chosen].sum()} transitions in all. Choose larger shares with --take, "
                "--top or --validation."
            )
    return kept, held


def _drawn(count: int, fraction: float, seed: int) -> NDArray[np.intp]:
    """A share of the numbers below `count`, drawn at random, ascending."""
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[: _share(count, fraction)])


def _share(count: int, fraction: float) -> int:
    return max(round(fraction * count), 1)


def _check(options: DataOptions) -> None:
    """Before anything is read."""
    if not 0 < options.take <= 1:
        raise UserError(f"--take is {options.take:g}; it must be above 0 and at most 1.")
    if not 0 < options.top <= 100:
        raise UserError(f"--top is {options.top:g}; it must be above 0 and at most 100.")
    if not 0 <= options.validation < 1:
        raise UserError(f"--validation is {options.validation:g}; it must be between 0 and 1.")


def _check_alike(first: Stream, part: Stream, sizes: dict[str, int], here: dict[str, int]) -> None:
    for what, size in sizes.items():
        if here[what] != size:
            raise UserError(
                f"{first.name} and {part.name} cannot be joined: their {what} is {size} and "
                f"{here[what]}."
            )
    if part.features != first.features:
        raise UserError(
            f"{first.name} and {part.name} cannot be joined: their columns, categories or action "
            "ranges differ. Put tables in one folder and load that, so that these are learnt from "
            "all of them."
        )
