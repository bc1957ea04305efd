"""Methods side by side: the same data, the same πβ, the same critic, the same seeds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from acpo.algorithms import Choice, choose
from acpo.algorithms.acpo import ACPO
from acpo.algorithms.bc import BC
from acpo.data import Dataset
from acpo.data.catalogue import counted_return
from acpo.data.combine import relabel
from acpo.errors import Diverged
from acpo.experiments.statistics import Estimate, estimate
from acpo.tasks import reference
from acpo.training.loop import Run, TrainConfig, kept_results, train
from acpo.training.reporting import Reporter


class Result(NamedTuple):
    """One method's end: returns [seeds, episodes] of the last checkpoint, as scores if known."""

    method: str
    directory: Path
    results: np.ndarray
    estimate: Estimate
    lam: float | None
    """Mean λ over seeds at the end; None for a method without a dial."""
    alpha: float | None


class Comparison(NamedTuple):
    """What `compare` found; everything behind it stands in the methods' run directories."""

    dataset: str
    environment: str
    quantity: str
    """"score" where the task has reference returns, else "return"."""
    data: float | None
    """The data's own mean, in that quantity; None where its rewards were replaced."""
    results: list[Result]
    steps: int
    seeds: list[int]
    stopped: dict[str, str]
    """Why a method that diverged has no result."""


def configured(method: str, config: ACPO, dataset: str | None = None) -> Choice:
    """The method with every field it shares with `config`; only what makes it a method differs.

    A fixed-λ case keeps its rule. Behaviour cloning has no critic: it takes the fields of the
    policy and of its optimiser. Any other method is as its authors set it for the data.
    """
    choice = choose(method, "default", dataset)
    algorithm = choice.algorithm
    if not isinstance(algorithm, ACPO | BC):
        return choice
    shared = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(algorithm)
        if hasattr(config, field.name)
    }
    if isinstance(algorithm, BC):  # it asks a Gaussian which head suits the data, and no density
        shared["behavior"] = config.behavior.of("gaussian")
    elif algorithm.rule.lam_rate == 0:
        del shared["rule"]
    return choice._replace(algorithm=dataclasses.replace(algorithm, **shared))


def compare(
    data: Dataset,
    methods: Sequence[str],
    config: ACPO,
    settings: TrainConfig,
    out: Path,
    reporter: Callable[[str], Reporter],
    as_recorded: bool = True,
) -> Comparison:
    """Train each method in OUT/method, going on where an earlier call was stopped.

    Where only the tables of a finished method were kept, they are its results. A method that
    diverges is left out and the others go on.

    πβ is a function of the data and of how it is fitted: once, in OUT, for all methods that learn
    from the same rewards.

    Args:
        as_recorded: The rewards are the recorded ones, which some tasks replace for a method's
            training (AntMaze: reward − 1); else they are what all methods shall learn from.
    """
    choices = {method: configured(method, config, data.name) for method in methods}
    texts = {choice.relabel for choice in choices.values() if choice.relabel and as_recorded}
    rewarded = {text: relabel(data, text) for text in texts}
    runs, stopped = {}, {}
    for method, choice in choices.items():
        own = rewarded.get(choice.relabel or "", data)
        asked = (own, choice.algorithm)
        fields = {"out": out / method, **dataclasses.asdict(settings)}
        try:
            runs[method] = kept_results(*asked, **fields) or train(
                *asked,
                resume=True,
                behavior_folder=out / f"behavior-{_digest(*asked)}",
                reporter=reporter(method),
                **fields,
            )
        except Diverged as error:
            stopped[method] = str(error)
    if not runs:
        raise Diverged(" ".join(f"{method}: {why}" for method, why in stopped.items()))
    first = next(iter(runs.values()))
    scale = reference(first.environment)
    mean = counted_return(data, first.environment)
    return Comparison(
        dataset=data.name,
        environment=first.environment or "",
        quantity="score" if scale else "return",
        data=float(scale.score(mean) if scale else mean) if as_recorded else None,
        results=[_result(method, run, scale) for method, run in runs.items()],
        steps=settings.steps,
        seeds=list(range(settings.seed, settings.seed + settings.seeds)),
        stopped=stopped,
    )


def _digest(data: Dataset, algorithm: Any) -> str:
    """Tells apart what would be fitted differently, by another method or in a later comparison."""
    fields = ("behavior", "head", "log_std_min", "log_std_max", "normalize_observations")
    settings = {
        name: value for name, value in dataclasses.asdict(algorithm).items() if name in fields
    }
    text = json.dumps([data.fingerprint, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _result(method: str, run: Run, scale: Any) -> Result:
    last = run.evaluations.filter(run.evaluations["step"] == run.evaluations["step"].max())
    returns = last.sort("seed", "episode")["return"].to_numpy()
    results = returns.reshape(last["seed"].n_unique(), -1)
    if scale:
        results = scale.score(results)
    lam = None
    if "dial/lambda" in run.metrics.columns:
        end = run.metrics.filter(run.metrics["step"] == run.metrics["step"].max())
        lam = float(end["dial/lambda"].to_numpy().mean())
    assert run.directory is not None
    alpha = getattr(run.algorithm, "alpha", None)
    return Result(method, run.directory, results, estimate(results), lam, alpha)
