"""A dataset at a glance: returns, lengths, ranges, and which part of the states it covers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acpo.data.dataset import Dataset
from acpo.data.inspect import sample, shortened
from acpo.report.figure import pyplot, save

_INCHES = 11.0
_NAME = 16


def draw_dataset(data: Dataset, out: Path) -> None:
    """Draw one figure; what concerns rows is taken from at most 20,000 of them."""
    plt = pyplot()
    rows = sample(len(data))
    observations, actions = _scaled(data.observations[rows]), data.actions[rows]
    figure = plt.figure(figsize=(_INCHES, 6.8), layout="constrained")
    figure.suptitle(
        f"{shortened(data.name, 60)}: {len(data):,} rows in {data.num_episodes:,} episodes"
    )
    above, below = figure.subfigures(2, 1, hspace=0.06)
    returns, lengths, coverage = above.subplots(1, 3, width_ratios=(1, 1, 1.35))
    _distribution(returns, data.episode_returns)
    returns.set(title=f"returns, mean {data.mean_return:,.5g}", xlabel="return of an episode")
    _distribution(lengths, data.episode_lengths)
    median = np.median(data.episode_lengths)
    lengths.set(title=f"lengths, median {median:,.5g}", xlabel="steps of an episode")
    _coverage(coverage, observations, actions, data.episode_returns[data.episode_ids[rows]])

    # As wide as what they show, but wide enough for a title.
    share = data.action_dim / (data.observation_dim + data.action_dim)
    share = min(max(share, 0.2), 0.5)
    left, right = below.subplots(1, 2, width_ratios=(1 - share, share))
    _ranges(left, observations, data.features.observation_names, "C0", (1 - share) * _INCHES)
    left.set(
        title="observations (bar: middle half, line: 1% to 99%, dot: median)",
        ylabel="deviations from the mean",
    )
    _ranges(right, actions, data.features.actions, "C1", share * _INCHES)
    right.set(title="actions", ylabel="in [−1, 1]", ylim=(-1.08, 1.08))
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(10)
    save(figure, out)


def _scaled(values: NDArray[Any]) -> NDArray[np.float64]:
    """Columns with mean 0 and deviation 1; one that never changes is NaN, and not drawn."""
    constant = values.min(axis=0) == values.max(axis=0)
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (wide - wide.mean(axis=0)) / np.where(constant, np.nan, wide.std(axis=0))


def _distribution(axis: Any, values: NDArray[Any]) -> None:
    low, high = float(values.min()), float(values.max())
    # Few episodes in many bins would look like gaps.
    bins = min(max(int(2 * len(values) ** 0.5), 5), 30)
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        # One value has no spread to show; a histogram would make up a scale for it.
        axis.bar([0], [len(values)], width=0.3)
        axis.set(xlim=(-1, 1), xticks=[0], xticklabels=[f"all {low:,.6g}"])
    elif values.dtype.kind == "i":
        # Bins that each hold as many whole numbers, or some would stand out for no reason.
        step = -int(-(high - low + 1) // bins)
        axis.hist(values, bins=np.arange(low, high + 1 + step, step) - 0.5)
    else:
        axis.hist(values, bins=bins)
    axis.set_ylabel("episodes")
    axis.yaxis.get_major_locator().set_params(integer=True)


def _coverage(
    axis: Any, observations: NDArray[Any], actions: NDArray[Any], returns: NDArray[Any]
) -> None:
    """The rows along the two directions in which the scaled observations vary most."""
    varying = observations[:, ~np.isnan(observations[0])]
    if varying.shape[1] < 2:
        # Too few for a plane: the first action is the other direction.
        x = varying[:, 0] if varying.size else np.zeros(len(actions))
        y, labels = actions[:, 0], ("observation (deviations from the mean)", "first action")
    else:
        directions = np.linalg.svd(varying.T @ varying)[2][:2]
        x, y = directions @ varying.T
        shares = np.array([x.var(), y.var()]) / varying.shape[1]
        first, second = (
            f"component {i + 1} ({share:.0%} of variance)" for i, share in enumerate(shares)
        )
        labels = first, second
    size = min(max(int(len(x) ** 0.5 / 2), 10), 40)
    # The return of the whole episode: a reward-to-go would mostly show how late in it a row is.
    if np.ptp(returns) > 0:
        cells = axis.hexbin(x, y, C=returns, gridsize=size, mincnt=1, linewidths=0.2)
        colour = "mean return of the episodes"
    else:
        cells = axis.hexbin(x, y, gridsize=size, mincnt=1, bins="log", linewidths=0.2)
        colour = "rows"
    axis.figure.colorbar(cells, ax=axis, label=colour)
    axis.set(title="coverage", xlabel=labels[0], ylabel=labels[1])


def _ranges(
    axis: Any, values: NDArray[Any], called: Sequence[str], colour: str, inches: float
) -> None:
    """Quantiles of each column."""
    width = values.shape[1]
    at = np.arange(width)
    low, lower, middle, upper, high = np.quantile(values, (0.01, 0.25, 0.5, 0.75, 0.99), axis=0)
    axis.axhline(0, color="0.85", lw=0.8, zorder=0)
    axis.vlines(at, low, high, color=colour, lw=1)
    axis.bar(at, upper - lower, bottom=lower, width=min(0.6, 0.08 * width), color=colour, alpha=0.5)
    axis.plot(at, middle, "o", color=colour, ms=3)
    constant = at[np.isnan(values[0])]
    if len(constant):
        axis.plot(constant, 0 * constant, "x", color="0.6", ms=3, label="never changes")
        axis.legend(loc="upper right", frameon=False, fontsize=8)
    axis.set_xlim(-0.8, width - 0.2)
    if len(called) == width and width <= inches / 0.22:
        axis.set_xticks(at, [shortened(name, _NAME) for name in called], rotation=90, fontsize=7)
    else:
        step = -int(-width // (inches / 0.3))
        axis.set_xticks(at[::step])
        axis.set_xlabel("dimension")
