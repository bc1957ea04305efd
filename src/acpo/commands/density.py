"""acpo density: how well behaviour densities fit a dataset, and what they say of other actions."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

from acpo.algorithms.acpo import ACPO
from acpo.behavior.config import BehaviorConfig, check_model
from acpo.behavior.fitting import Behavior
from acpo.behavior.separation import Separation, Verdict, judge, separate
from acpo.data import DEFAULT, DataOptions, Dataset
from acpo.data.registry import load
from acpo.data.writing import unwritable
from acpo.errors import UserError
from acpo.files import write_json
from acpo.training.prepare import FittingRows, Normalizer, fit_behavior, fitting_rows

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Densities on a bound need a word of caution from this share of the rows on.
NOTABLE_ON_BOUND = 0.01
# A share of fewer rows than these is too much a matter of chance for a verdict.
MIN_ROWS = 100


@dataclass(frozen=True)
class DensityArguments:
    """Fit behaviour densities to a dataset and ask whether they know its actions from others.

    For each model: the log-likelihood of held-out actions, and how well log πβ separates them
    from perturbed ones, a + ξz clipped to the box. Drawn as in the paper (needs acpo[plot]).
    """

    dataset: tyro.conf.Positional[str] = DEFAULT
    """A name, a file or a folder."""
    models: str = "gaussian,cvae-elbo,cvae-is,mixture"
    """Which densities, separated by commas."""
    xi: tuple[float, ...] = (0.1, 0.3, 0.5, 0.8)
    """ξ, the scales of the perturbation."""
    head: Literal["plain", "squashed", "auto"] = "auto"
    """The Gaussian's head. auto: the one that gives held-out actions more mass."""
    hidden: tuple[int, ...] | None = None
    """Hidden layers of every model. None: each model's own."""
    steps: int = 10_000
    """Steps of each fit at most; early stopping may end it sooner."""
    rows: int = 4_000
    """Held-out rows to judge by, at most, evenly spaced; 100 or more."""
    seed: int = 0
    """Seed of the perturbation."""
    out: Path | None = None
    """Folder for the pictures; by default densities/ and the dataset's name."""
    json: Path | None = None
    """Also write the numbers to this file."""
    data: Annotated[DataOptions, tyro.conf.arg(name="")] = field(default_factory=DataOptions)

    def __post_init__(self) -> None:
        for model in self.chosen:
            check_model(model)
        if len(set(self.chosen)) < len(self.chosen):
            raise UserError(f"--models {self.models} names a model twice.")
        if not self.xi or not all(np.isfinite(xi) and xi > 0 for xi in self.xi):
            given = " ".join(f"{xi:g}" for xi in self.xi) or "empty"
            raise UserError(f"--xi is {given}; it takes one or more numbers above 0.")
        for name, least in (("steps", 1), ("rows", MIN_ROWS), ("seed", 0)):
            if getattr(self, name) < least:
                raise UserError(f"--{name} is {getattr(self, name)}; it must be at least {least}.")
        self.config("gaussian")  # It refuses bad layers, better now than once the data is read.

    @property
    def chosen(self) -> list[Any]:
        return [name.strip() for name in self.models.split(",")]

    def config(self, model: Any) -> BehaviorConfig:
        """How a model is fitted: in equal stretches between looks, never beyond `steps`."""
        usual = BehaviorConfig.check_every
        looks = -(-self.steps // usual)
        stretch = self.steps // looks
        return BehaviorConfig(
            model=model, hidden=self.hidden, max_steps=looks * stretch, check_every=stretch
        )


@dataclass(frozen=True)
class Found:
    """One model, fitted and asked."""

    behavior: Behavior
    seconds: float
    separation: Separation


def main(words: list[str]) -> int:
    from rich.console import Console

    arguments = tyro.cli(DensityArguments, prog="acpo density", args=words)
    from acpo.report.density import draw_densities
    from acpo.report.figure import pyplot

    pyplot()  # Better to miss matplotlib now than after the fits.
    data = load(arguments.dataset, arguments.data)
    console = Console()
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(f"data      {data!r}")
    out = arguments.out or Path("densities") / data.name.replace("/", "-")
    for file in (out / "density.png", arguments.json):
        if file:
            _check_writable(file)
    rows = fitting_rows(data, Normalizer.fit(data, True), BehaviorConfig().held_out)
    held = rows.held_rows[:: -(-len(rows.held_rows) // arguments.rows)]
    found = _fit_and_ask(arguments, data, rows, held, console)
    verdicts = judge([one.separation for one in found])

    console.print(_table(found, arguments.xi))
    on_bound = float(np.mean(np.abs(rows.actions[held]).max(axis=1) >= 1.0))
    for line in _words(found, verdicts, on_bound):
        say(line)
    title = f"{data.name}: log πβ of {len(held):,} held-out actions, and of the same perturbed"
    for file in draw_densities([one.separation for one in found], title, out):
        say(f"drawn in  {file}")
    if arguments.json:
        write_json(arguments.json, _summary(data, found, verdicts, len(held), on_bound))
    return 0


def _check_writable(path: Path) -> None:
    """Refuse, before the fits, a place where no file can be written. Leaves nothing behind."""
    missing = [p for p in (path.parent, *path.parent.parents) if not os.path.exists(p)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _fit_and_ask(
    arguments: DensityArguments,
    data: Dataset,
    rows: FittingRows,
    held: np.ndarray,
    console: Console,
) -> list[Found]:
    fitted: dict[str, tuple[Behavior, float]] = {}
    found = []
    for model in arguments.chosen:
        config = arguments.config(model)
        # Only the Gaussian has a head, and so a need to choose one.
        head = arguments.head if model == "gaussian" else "plain"
        start = time.perf_counter()
        with console.status(f"fitting {model}"):
            # Two estimators of one model are two questions to one fit.
            if model.startswith("cvae") and "cvae" in fitted:
                behavior, seconds = fitted["cvae"]
                behavior = behavior._replace(config=config)
            else:
                algorithm = ACPO(head=head, behavior=config)
                behavior = fit_behavior(rows, algorithm)
                seconds = time.perf_counter() - start
                fitted[behavior.density.family] = behavior, seconds
        with console.status(f"asking {model}"):
            log_prob = partial(behavior.log_prob, rows.observations[held])
            actions = rows.actions[held]
            asked = separate(model, log_prob, actions, arguments.xi, arguments.seed)
        found.append(Found(behavior, seconds, asked))
    return found


def _label(one: Found) -> str:
    model = one.separation.model
    return f"{model} ({one.behavior.head.kind})" if model == "gaussian" else model


def _table(found: list[Found], xis: tuple[float, ...]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("πβ", "steps", "log πβ"):
        table.add_column(name, justify="left" if name == "πβ" else "right", no_wrap=True)
    for xi in xis:
        table.add_column(f"ξ = {xi:g}", justify="right", no_wrap=True)
    for one in found:
        table.add_row(
            _label(one),
            f"{one.behavior.steps:,}",
            f"{one.separation.log_prob.mean():.3f}",
            *(f"{p.auroc:.2f} {p.passing:4.0%}" for p in one.separation.perturbed),
        )
    return table


def _words(found: list[Found], verdicts: list[Verdict], on_bound: float) -> list[str]:
    best = max(found, key=lambda one: one.separation.log_prob.mean())
    lines = [
        "",
        "log πβ    mean over held-out actions, in nats",
        "ξ         AUROC of held-out against perturbed actions, then the share of perturbed ones",
        "          that pass for data: above the log πβ that 90 % of the data's actions exceed",
        f"likeliest {_label(best)}, at {best.separation.log_prob.mean():.3f} nats an action",
    ]
    if on_bound >= NOTABLE_ON_BOUND:
        lines += [
            f"bounds    {on_bound:.0%} of the rows have an action exactly on a bound. A perturbed "
            "action",
            "          clipped to it again may be one of the data's.",
        ]
        if any(_label(one) == "gaussian (squashed)" for one in found):
            lines += [
                "          There a squashed Gaussian's density is limited by rounding alone: its",
                "          likelihood means little.",
            ]
    lines.append("question  does the model give actions out of distribution too much likelihood?")
    for verdict in verdicts:
        lines.append(
            f"          {verdict.model}: {'yes' if verdict.too_much else 'no'}; {verdict.because}"
        )
    return lines


def _summary(
    data: Dataset, found: list[Found], verdicts: list[Verdict], rows: int, on_bound: float
) -> dict[str, Any]:
    return {
        "dataset": data.name,
        "rows": rows,
        "share_on_bound": on_bound,
        "models": [
            {
                "model": one.separation.model,
                "head": one.behavior.head.kind if verdict.model == "gaussian" else None,
                "steps": one.behavior.steps,
                "seconds": one.seconds,
                "held_out_log_prob": float(one.separation.log_prob.mean()),
                "perturbed": [
                    {
                        "xi": p.xi,
                        "auroc": p.auroc,
                        "passing": p.passing,
                        "mean_log_prob": float(p.log_prob.mean()),
                    }
                    for p in one.separation.perturbed
                ],
                "too_much_likelihood": verdict.too_much,
                "because": verdict.because,
            }
            for one, verdict in zip(found, verdicts, strict=True)
        ],
    }
