"""The course of a run: score and λ over steps, with the regimes of λ marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acpo.errors import UserError
from acpo.files import read_json, write_atomically


def pyplot() -> Any:
    """matplotlib's pyplot, drawing to files; it is imported only here, being an extra."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise UserError("Drawing needs matplotlib: pip install 'acpo[plot]'.") from error
    return plt


def draw_run(run: Path, out: Path) -> None:
    """Draw score (or return) and, where there is a dial, λ; mean and range over seeds."""
    plt = pyplot()
    import polars as pl

    if not (run / "evaluations.parquet").exists():
        raise UserError(f"{run} is not a run directory with evaluations; train with --out first.")
    try:
        metrics = pl.read_parquet(run / "metrics.parquet")
        evaluations = pl.read_parquet(run / "evaluations.parquet")
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"The tables of {run} are missing or damaged ({error}).") from error
    if not len(evaluations):
        raise UserError(
            f"{run} was trained without an environment, so there is no course of scores to draw; "
            "its losses are in metrics.parquet. To evaluate while training give --env."
        )
    summary: dict[str, Any] = {}
    if (run / "summary.json").exists():
        summary = read_json(run / "summary.json")
    quantity = "score" if evaluations["score"].is_not_null().all() else "return"
    dial = "dial/lambda" in metrics.columns
    figure, axes = plt.subplots(1, 2 if dial else 1, figsize=(9 if dial else 4.5, 3.2))
    left = axes[0] if dial else axes

    per_seed = evaluations.group_by("step", "seed").agg(pl.col(quantity).mean())
    band(left, per_seed, quantity, "C0", "ACPO" if dial else "policy")
    for key, text, colour in (
        (f"data_mean_{quantity}", "the data's mean", "0.4"),
        (f"behavior_cloning_{quantity}", "behaviour cloning", "C1"),
    ):
        if key in summary:
            left.axhline(summary[key], color=colour, ls="--", lw=1, label=text)
    left.set(
        xlabel="gradient steps", ylabel="normalised score" if quantity == "score" else "return"
    )
    if left.get_ylim()[0] > 0:
        left.set_ylim(bottom=0)
    # Above the axes, where no line can run through it.
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "frameon": False, "fontsize": 8}
    left.legend(**above, ncols=3)
    if dial:
        right = axes[1]
        band(right, metrics.select("step", "seed", "dial/lambda"), "dial/lambda", "C0", "λ")
        alpha = read_json(run / "run.json")["algorithm_config"]["alpha"]
        right.axhline(alpha, color="0.4", ls="--", lw=1, label="λ = α: KL-density constraint")
        top = max(1.5 * alpha, right.get_ylim()[1])  # a dial that stays at α is not a frame
        right.set(xlabel="gradient steps", ylabel="λ", ylim=(0, top))
        right.legend(**above, ncols=2)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    save(figure, out)


def save(figure: Any, out: Path) -> None:
    """Write a figure in the format that the file's name says, and close it."""
    kind = out.suffix.lstrip(".").lower() or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise UserError(f"{out} names no format of pictures; write .png, .svg or .pdf.")
    write_atomically(out, lambda file: figure.savefig(file, format=kind, dpi=150))
    pyplot().close(figure)


def band(axis: Any, table: Any, column: str, colour: str, label: str, stroke: str = "-") -> None:
    """The mean over seeds as a line, the range over seeds as a band."""
    import polars as pl

    value = pl.col(column)
    course = table.group_by("step").agg(
        value.mean().alias("mean"), value.min().alias("low"), value.max().alias("high")
    )
    course = course.sort("step")
    axis.plot(course["step"], course["mean"], color=colour, ls=stroke, label=label)
    if table["seed"].n_unique() > 1:
        axis.fill_between(course["step"], course["low"], course["high"], color=colour, alpha=0.2)
