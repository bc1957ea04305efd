"""Datasets from datasets: join, choose episodes, relabel rewards, hold episodes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acpo.data.dataset import Dataset
from acpo.data.options import DataOptions
from acpo.data.pairing import Transitions
from acpo.errors import UserError

SEED = 0


def concatenate(parts: Sequence[Dataset]) -> Dataset:
    """The episodes of all parts, one dataset after another; their validation sets likewise."""
    first, *others = parts
    for part in others:
        for what in ("observation_dim", "action_dim"):
            if getattr(part, what) != getattr(first, what):
                raise UserError(
                    f"{first.name} and {part.name} cannot be joined: their {what} is "
                    f"{getattr(first, what)} and {getattr(part, what)}."
                )
        if part.features != first.features:
            raise UserError(
                f"{first.name} and {part.name} cannot be joined: their columns, categories or "
                "action ranges differ. Put tables in one folder and load that, so that these are "
                "learnt from all of them."
            )
    offsets = np.cumsum([0, *(part.num_episodes for part in parts)])
    environments = {part.environment for part in parts}
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in (*Transitions._fields, "episode_returns", "episode_lengths")
        if name != "episode_ids"
    }
    held_out = [part.validation for part in parts if part.validation is not None]
    return Dataset(
        name="+".join(part.name for part in parts),
        **arrays,
        episode_ids=np.concatenate(
            [part.episode_ids + np.int32(o) for part, o in zip(parts, offsets, strict=False)]
        ),
        environment=environments.pop() if len(environments) == 1 else None,
        source="+".join(part.source for part in parts),
        features=first.features,
        validation=concatenate(held_out) if held_out else None,
    )


def select(data: Dataset, chosen: NDArray[np.bool_]) -> Dataset:
    """The episodes for which `chosen` (one flag per episode) is true, in memory, renumbered."""
    rows = np.flatnonzero(chosen[data.episode_ids])
    fields: dict[str, Any] = {name: getattr(data, name)[rows] for name in Transitions._fields}
    renumbered = np.cumsum(chosen, dtype=np.int32) - 1
    fields["episode_ids"] = renumbered[fields["episode_ids"]]
    return replace(
        data,
        **fields,
        episode_returns=data.episode_returns[chosen],
        episode_lengths=data.episode_lengths[chosen],
        mapping=None,
    )


def take(data: Dataset, fraction: float, seed: int = SEED) -> Dataset:
    """A share of the episodes, drawn at random, in their order."""
    if not 0 < fraction <= 1:
        raise UserError(f"--take is {fraction:g}; it must be above 0 and at most 1.")
    return select(data, _drawn(data.num_episodes, fraction, seed))


def top(data: Dataset, percent: float) -> Dataset:
    """The best `percent` of the episodes by return, in their order; at least one."""
    if not 0 < percent <= 100:
        raise UserError(f"--top is {percent:g}; it must be above 0 and at most 100.")
    count = max(round(percent / 100 * data.num_episodes), 1)
    chosen = np.zeros(data.num_episodes, dtype=bool)
    chosen[np.argsort(-data.episode_returns, kind="stable")[:count]] = True
    return select(data, chosen)


def relabel(data: Dataset, text: str) -> Dataset:
    """Replace the reward by an expression over reward, terminal, observation_0, action_0, ….

    Columns that have names can be written by them. Returns are those of the kept rows: the reward
    of a dropped last row cannot be relabelled.
    """
    from acpo.data import expression

    columns: dict[str, Any] = {"reward": data.rewards, "terminal": data.terminals}
    names = {
        "observation": data.features.observation_names,
        "action": data.features.actions,
        "next_observation": (),
    }
    for kind, known in names.items():
        matrix = getattr(data, f"{kind}s")
        columns |= {name: matrix[:, i] for i, name in enumerate(known)}
        columns |= {f"{kind}_{i}": matrix[:, i] for i in range(matrix.shape[1])}
    values = expression.evaluate(text, columns)
    rewards = np.ascontiguousarray(np.broadcast_to(values, len(data)), dtype=np.float32)
    bad = ~np.isfinite(rewards)
    if bad.any():
        raise UserError(
            f"{data.source}: the reward '{text}' is {rewards[bad][0]} at row {bad.argmax()}; "
            "change the expression so that it is a number everywhere."
        )
    returns: Any = np.bincount(data.episode_ids, weights=rewards, minlength=data.num_episodes)
    validation = None if data.validation is None else relabel(data.validation, text)
    return replace(data, rewards=rewards, episode_returns=returns, validation=validation)


def hold_out(data: Dataset, fraction: float, seed: int = SEED) -> Dataset:
    """The dataset without a share of its episodes, which become its `validation`."""
    if not 0 < fraction < 1:
        raise UserError(f"--validation is {fraction:g}; it must be between 0 and 1.")
    if data.num_episodes < 2:
        raise UserError(f"{data.source}: a single episode cannot be split for --validation.")
    held = _drawn(data.num_episodes, fraction, seed)
    if held.all():
        held[np.flatnonzero(held)[-1]] = False
    return replace(select(data, ~held), validation=select(data, held))


def apply(data: Dataset, options: DataOptions) -> Dataset:
    """What the options ask for: relabel, then choose the best, then a share, then hold out."""
    if options.relabel is not None:
        data = relabel(data, options.relabel)
    if options.top != 100:
        data = top(data, options.top)
    if options.take != 1:
        data = take(data, options.take)
    if options.validation != 0:
        data = hold_out(data, options.validation)
    return data


def _drawn(count: int, fraction: float, seed: int) -> NDArray[np.bool_]:
    """So many of `count` flags true, at least one."""
    chosen = np.zeros(count, dtype=bool)
    size = max(round(fraction * count), 1)
    chosen[np.random.default_rng(seed).permutation(count)[:size]] = True
    return chosen
