"""What a dataset holds: its size, its returns, and the range of every number in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acpo.data.dataset import Dataset, Fingerprint

AT_BOUND = 0.999
"""An action of at least this size counts as lying at the bound of the box."""
BINS = 10

WIDTH = 100
_SHOWN = 12
_BAR = 50
_NAME = 30
_EIGHTHS = " ▏▎▍▌▋▊▉"


class Moments:
    """Range, mean and deviation of columns that come block by block.

    Blocks are joined by Chan's formula: a sum of squares would lose a column that varies little
    around a large mean.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.low, self.high = np.full(width, np.inf), np.full(width, -np.inf)
        self.mean, self._square = np.zeros(width), np.zeros(width)

    def add(self, block: NDArray[Any]) -> None:
        mean = block.mean(axis=0, dtype=np.float64)
        apart, total = mean - self.mean, self.count + len(block)
        self._square += ((block - mean) ** 2).sum(axis=0)
        self._square += apart**2 * (self.count * len(block) / total)
        self.mean += apart * (len(block) / total)
        self.low = np.minimum(self.low, block.min(axis=0))
        self.high = np.maximum(self.high, block.max(axis=0))
        self.count = total

    @property
    def std(self) -> NDArray[np.float64]:
        return np.sqrt(self._square / self.count)


def names(given: Sequence[str], width: int, prefix: str) -> list[str]:
    """The names that the source gives to its numbers, or "prefix_0", "prefix_1", … ."""
    return list(given) if len(given) == width else [f"{prefix}_{i}" for i in range(width)]


def sample(total: int, rows: int = 20_000) -> NDArray[np.intp]:
    """Rows drawn without order in mind, ascending; all where there are no more than `rows`.

    Every k-th row would always meet the same step of episodes of equal length.
    """
    if total <= rows:
        return np.arange(total)
    return np.sort(np.random.default_rng(0).choice(total, rows, replace=False))


def facts(data: Dataset, mean_score: float | None = None) -> dict[str, Any]:
    """All there is to say about a dataset, ready for JSON, in one pass over its rows.

    Args:
        mean_score: Its mean return, normalised, where the environment has reference returns.
    """
    observations, actions = Moments(data.observation_dim), Moments(data.action_dim)
    rewards, digest = Moments(1), Fingerprint()
    at_bounds, rows_at_bounds = np.zeros(data.action_dim, np.int64), 0
    terminals = zero_rewards = 0
    for block in data.blocks():
        observations.add(block.observations)
        actions.add(block.actions)
        rewards.add(block.rewards[:, None])
        digest.add(block)
        bounds = np.abs(block.actions) >= AT_BOUND
        at_bounds += bounds.sum(axis=0)
        rows_at_bounds += int(bounds.any(axis=1).sum())
        terminals += int(block.terminals.sum())
        zero_rewards += int((block.rewards == 0).sum())

    features, returns, lengths = data.features, data.episode_returns, data.episode_lengths
    action_rows = _columns(actions, names(features.actions, data.action_dim, "action"))
    for row, share in zip(action_rows, (at_bounds / len(data)).tolist(), strict=True):
        row["at_bounds"] = share
    if features.action_low:
        ends = (features.to_units(end).tolist() for end in (actions.low, actions.high))
        for row, low, high in zip(action_rows, *ends, strict=True):
            row["units"] = {"min": low, "max": high}
    counts, edges = _histogram(returns)
    quartiles = np.quantile(returns, [0.25, 0.5, 0.75]).tolist()
    return {
        "name": data.name,
        "source": data.source,
        "environment": data.environment,
        "fingerprint": digest.finish(data.episodes),
        "rows": len(data),
        "episodes": data.num_episodes,
        "terminals": terminals,
        # Every terminal ends an episode, so the others were cut off.
        "timeouts": data.num_episodes - terminals,
        "validation_episodes": (None if data.validation is None else data.validation.num_episodes),
        "lengths": {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "max": int(lengths.max()),
        },
        "returns": {
            "mean": data.mean_return,
            "std": float(returns.std()),
            "min": float(returns.min()),
            "lower_quartile": quartiles[0],
            "median": quartiles[1],
            "upper_quartile": quartiles[2],
            "max": float(returns.max()),
        },
        "return_histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
        "mean_score": mean_score,
        "rewards": {**_columns(rewards, ["reward"])[0], "zero": zero_rewards / len(data)},
        "observation_dim": data.observation_dim,
        "action_dim": data.action_dim,
        "observations": _columns(
            observations,
            names(features.observation_names, data.observation_dim, "observation"),
        ),
        "actions": action_rows,
        "at_bounds": float(at_bounds.sum() / (len(data) * data.action_dim)),
        "rows_at_bounds": rows_at_bounds / len(data),
    }


def _histogram(returns: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ten bins; one where the returns are all the same, or too close for ten in floating point."""
    try:
        return np.histogram(returns, bins=BINS if np.ptp(returns) else 1)
    except ValueError:
        return np.histogram(returns, bins=1)


def _columns(found: Moments, called: Sequence[str]) -> list[dict[str, Any]]:
    values = (x.tolist() for x in (found.low, found.mean, found.std, found.high))
    keys = ("name", "min", "mean", "std", "max")
    return [dict(zip(keys, row, strict=True)) for row in zip(called, *values, strict=True)]


def describe(facts: dict[str, Any]) -> list[str]:
    """`facts` as lines of at most 100 columns."""
    returns, lengths, rewards = facts["returns"], facts["lengths"], facts["rewards"]
    score = facts["mean_score"]
    held = facts["validation_episodes"]
    pairs = [
        ("source", shortened(facts["source"], WIDTH - 16, keep_end=True)),
        ("environment", facts["environment"] or "not named"),
        ("fingerprint", facts["fingerprint"]),
        ("rows", f"{facts['rows']:,}"),
        (
            "episodes",
            f"{facts['episodes']:,}: {facts['terminals']:,} end at a terminal, "
            f"{facts['timeouts']:,} cut off"
            + (f"; {held:,} more held out for validation" if held else ""),
        ),
        (
            "lengths",
            f"{lengths['min']:,} to {lengths['max']:,}, median {lengths['median']:,.10g}",
        ),
        (
            "rewards",
            f"{rewards['min']:.4g} to {rewards['max']:.4g}, mean {rewards['mean']:.4g}, "
            f"{rewards['zero']:.1%} are zero",
        ),
        (
            "returns",
            f"{returns['min']:.4g} to {returns['max']:.4g}, "
            f"mean {returns['mean']:.4g} ± {returns['std']:.3g}"
            + ("" if score is None else f" (normalised score {score:.1f})"),
        ),
        (
            "",
            f"median {returns['median']:.4g}, "
            f"half within {returns['lower_quartile']:.4g} to {returns['upper_quartile']:.4g}",
        ),
        (
            "at the bounds",
            f"{facts['at_bounds']:.1%} of the actions' numbers, "
            f"at least one in {facts['rows_at_bounds']:.1%} of the rows",
        ),
    ]
    lines = [shortened(facts["name"], WIDTH)]
    lines += [f"  {key:<13} {value}" for key, value in pairs]
    lines += ["", "Episodes by return", *_bars(**facts["return_histogram"])]
    lines += ["", *_table("observations", facts["observations"])]
    return [*lines, "", *_table("actions", facts["actions"])]


def bar(share: float, width: int = _BAR) -> str:
    """A bar of `share` times `width` characters, to an eighth of one; anything is visible."""
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _bars(counts: Sequence[int], edges: Sequence[float]) -> list[str]:
    lows, highs = ([f"{edge:.4g}" for edge in part] for part in (edges[:-1], edges[1:]))
    wide, most = max(map(len, lows + highs)), max(counts)
    return [
        f"  {low:>{wide}} to {high:>{wide}}  {count:>9,}  {bar(count / most)}".rstrip()
        for low, high, count in zip(lows, highs, counts, strict=True)
    ]


def _table(title: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    shown = rows[:_SHOWN]
    called = [shortened(row["name"], _NAME) for row in shown]
    wide = max(len(title) + len(f" ({len(rows)})"), *map(len, called))
    heads = ["min", "mean", "std", "max"]
    bounds, units = "at_bounds" in rows[0], "units" in rows[0]
    head = f"{f'{title} ({len(rows)})':<{wide}}  " + "".join(f"{text:>11}" for text in heads)
    lines = [head + "  at bounds" * bounds + "  in units" * units]
    for name, row in zip(called, shown, strict=True):
        line = f"{name:<{wide}}  " + "".join(f"{row[text]:>11.4g}" for text in heads)
        if bounds:
            line += f"{row['at_bounds']:>11.1%}"
        if units:
            line += f"  {row['units']['min']:.4g} to {row['units']['max']:.4g}"
        lines.append(line)
    if len(rows) > len(shown):
        lines.append(f"… and {len(rows) - len(shown)} more (--json has all)")
    return ["  " + line for line in lines]


def shortened(text: str, width: int, *, keep_end: bool = False) -> str:
    """`text` in at most `width` characters; of a path the end tells more than the beginning."""
    if len(text) <= width:
        return text
    return "…" + text[1 - width :] if keep_end else text[: width - 1] + "…"
