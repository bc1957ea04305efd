"""The paper's pictures of a behaviour density: log πβ of dataset and of perturbed actions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acpo.behavior.separation import Perturbed, Separation
from acpo.files import write_atomically
from acpo.report.figure import pyplot

# The paper's main figure is drawn at this ξ; the nearest one asked for is taken.
USUAL_XI = 0.3
# Training clips log πβ here (ACPO.log_prob_clip), so nothing beyond can matter to it.
CLIP = 20.0


def draw_densities(found: Sequence[Separation], title: str, out: Path) -> list[Path]:
    """Draw the distributions at one ξ, with AUROC over ξ, and the sweep; returns the files."""
    xis = [p.xi for p in found[0].perturbed]
    usual = min(range(len(xis)), key=lambda i: abs(xis[i] - USUAL_XI))
    files = [out / "density.png", out / "density-sweep.png"]
    _draw_usual(found, usual, title, files[0])
    _draw_sweep(found, title, files[1])
    return files


def _draw_usual(found: Sequence[Separation], usual: int, title: str, out: Path) -> None:
    plt = pyplot()
    columns = len(found) + 1
    # The last inch is for the names of the lines, beside their panel, where they cover nothing.
    size = (2.9 * columns + 1, 3.2)
    figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained")
    bins = _bins(found)
    for axis, one in zip(axes, found, strict=False):
        _distributions(axis, one, one.perturbed[usual], bins)
        axis.set(title=f"{one.model}, ξ = {one.perturbed[usual].xi:g}", xlabel="log πβ(a|s)")
    _level(axes[:-1])
    axes[0].set_ylabel("share of actions")
    _legend(figure, axes[0])
    axes[-1].axhline(0.5, color="0.4", ls=":", lw=1)
    for i, one in enumerate(found):
        xis = [p.xi for p in one.perturbed]
        # Two estimators of one model may lie on each other: each line is thinner than the last.
        width = 1.2 + len(found) - i
        axes[-1].plot(xis, [p.auroc for p in one.perturbed], "o-", lw=width, label=one.model)
    axes[-1].set(title="separation", xlabel="ξ", ylabel="AUROC", ylim=(0.45, 1.02))
    axes[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    _finish(plt, figure, title, out)


def _draw_sweep(found: Sequence[Separation], title: str, out: Path) -> None:
    plt = pyplot()
    rows, columns = len(found), len(found[0].perturbed)
    figure, axes = plt.subplots(
        *(rows, columns),
        figsize=(2.6 * columns + 0.6, 1.9 * rows + 0.8),
        layout="constrained",
        sharex=True,
        squeeze=False,
    )
    bins = _bins(found)
    for line, one in zip(axes, found, strict=True):
        for axis, perturbed in zip(line, one.perturbed, strict=True):
            _distributions(axis, one, perturbed, bins)
            axis.set_title(f"{one.model}, ξ = {perturbed.xi:g}: AUROC {perturbed.auroc:.2f}")
        _level(line)
        line[0].set_ylabel("share of actions")
    for axis in axes[-1]:
        axis.set_xlabel("log πβ(a|s)")
    _legend(figure, axes[0][0])
    _finish(plt, figure, title, out)


def _bins(found: Sequence[Separation]) -> Any:
    """Bins that all panels share, from the lowest percent to the highest value."""
    values = np.concatenate(
        [part for one in found for part in (one.log_prob, *(p.log_prob for p in one.perturbed))]
    )
    low, high = np.quantile(np.clip(values, -CLIP, CLIP), (0.01, 0.999))
    return np.linspace(low, max(high, low + 1e-3), 61)


def _distributions(axis: Any, one: Separation, perturbed: Perturbed, bins: Any) -> None:
    """Two histograms; what lies outside the bins is counted in the outermost."""
    for values, colour, label in (
        (one.log_prob, "C0", "in the data"),
        (perturbed.log_prob, "C1", "perturbed"),
    ):
        inside = np.clip(values, bins[0], bins[-1])
        share = np.full(len(values), 1 / len(values))
        axis.hist(inside, bins, weights=share, color=colour, alpha=0.5, label=label)


def _level(axes: Sequence[Any]) -> None:
    """One height for all, so that shares compare."""
    top = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(0, top)


def _legend(figure: Any, axis: Any) -> None:
    """Below the panels, where it covers nothing."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)


def _finish(plt: Any, figure: Any, title: str, out: Path) -> None:
    figure.suptitle(title, fontsize=10)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(9)
    write_atomically(out, lambda file: figure.savefig(file, format="png", dpi=150))
    plt.close(figure)
