"""A comparison as a picture and as one HTML page, from the methods' run directories alone."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acpo.cci import REGIMES, regime
from acpo.files import read_json, write_atomically
from acpo.report.figure import band, pyplot

# The methods of the special-case figure keep their colours whichever of them are compared.
FIRST = ("acpo", "wbc", "awac", "inac", "bc")
# matplotlib has ten colours; the methods beyond have them again in another stroke.
COLOURS, STROKES = 10, ("-", "--", ":")


def draw(found: Mapping[str, Any]) -> Any:
    """The paper's special-case figure: scores of all methods, and λ's course among the regimes."""
    plt = pyplot()
    import polars as pl

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8))
    quantity, highest = found["quantity"], 1.0
    order = [*FIRST, *(method for method in found["methods"] if method not in FIRST)]
    for method, result in found["methods"].items():
        again, colour_number = divmod(order.index(method), COLOURS)
        run, colour, stroke = Path(result["directory"]), f"C{colour_number}", STROKES[again]
        evaluations = pl.read_parquet(run / "evaluations.parquet")
        per_seed = evaluations.group_by("step", "seed").agg(pl.col(quantity).mean())
        band(left, per_seed, quantity, colour, method, stroke)
        metrics = pl.read_parquet(run / "metrics.parquet")
        if "dial/lambda" in metrics.columns:
            alpha = read_json(run / "run.json")["algorithm_config"]["alpha"]
            course = metrics.select("step", "seed", pl.col("dial/lambda") / alpha)
            band(right, course, "dial/lambda", colour, method, stroke)
            highest = max(highest, *course["dial/lambda"].to_list())
    if found["data"] is not None:
        left.axhline(found["data"], color="0.4", ls="--", lw=1, label="the data's mean")
    left.set(xlabel="gradient steps", ylabel=f"{quantity}, mean and range over seeds")
    right.set_yscale("symlog", linthresh=0.1, linscale=0.6)
    top = 3.0 * highest
    right.set(xlabel="gradient steps", ylabel="λ/α", ylim=(-0.005, top))
    # The axis is linear below 0.1.
    bottoms = (0.0, *(regime.top for regime in REGIMES))
    for i, (low, (high, name, _)) in enumerate(zip(bottoms, REGIMES, strict=False)):
        if low >= top:
            break
        right.axhspan(low, min(high, top), color="0.5", alpha=0.16 if i % 2 == 0 else 0.06, lw=0)
        middle = 0.005 if low == 0 else (low * min(high, top)) ** 0.5
        right.annotate(
            name, (1.01, middle), xycoords=("axes fraction", "data"), fontsize=7, va="center"
        )
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8, ncols=3)
    figure.tight_layout()
    return figure


def rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """method, mean ± std, 95 % interval, best seed to worst, final λ and its regime, as text."""
    table: list[tuple[str, ...]] = []
    for method, result in found["methods"].items():
        seeds = ", ".join(f"{sum(r) / len(r):.1f}" for r in result["results"])
        dial = ""
        if result["lambda"] is not None:
            dial = f"{result['lambda']:.3g}: {regime(result['lambda'], result['alpha'])}"
        table.append(
            (
                method,
                f"{result['mean']:.1f} ± {result['std']:.1f}",
                f"{result['low']:.1f} to {result['high']:.1f}",
                seeds,
                dial,
            )
        )
    table += [(method, "diverged", "", "", "") for method in found.get("stopped", {})]
    own = "rewards replaced" if found["data"] is None else f"{found['data']:.1f}"
    table.append(("the data", own, "", "", ""))
    return table


HEADINGS = ("method", "mean ± std over seeds", "95 % interval", "by seed", "final λ")

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; padding: .35rem .7rem; border-bottom: 1px solid #ddd }}
tr:last-child td {{ color: #666 }}
img {{ width: 100%; height: auto; margin: 1rem 0 }}
code {{ background: #f3f3f3; padding: .1rem .3rem; overflow-wrap: anywhere }}
</style>
<h1>{title}</h1>
<p>{facts}</p>
<table><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>
<img alt="Scores over gradient steps, and the course of λ among the regimes" src="{image}">
<p>Made by <code>{command}</code>. Raw returns of every episode stand in each method's
<code>evaluations.parquet</code>.</p>
</html>
"""


def write_page(found: Mapping[str, Any], figure: Any, command: str, out: Path) -> None:
    """One self-contained HTML page: the facts, the table, the picture, the command."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    facts = (
        f"{found['dataset']}, evaluated in {found['environment']}; {found['steps']:,} gradient "
        f"steps; seeds {', '.join(map(str, found['seeds']))}; last checkpoint, "
        f"{found['episodes']} deterministic episodes per seed; values are {found['quantity']}s."
    )

    def cells(tag: str, texts: tuple[str, ...]) -> str:
        return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)

    page = _PAGE.format(
        title=html.escape(f"{' · '.join(found['methods'])} on {found['dataset']}"),
        facts=html.escape(facts),
        headings=cells("th", HEADINGS),
        rows="".join(f"<tr>{cells('td', row)}</tr>" for row in rows(found)),
        image="data:image/png;base64," + base64.b64encode(picture.getvalue()).decode(),
        command=html.escape(command),
    )
    write_atomically(out, lambda file: file.write(page.encode()))
