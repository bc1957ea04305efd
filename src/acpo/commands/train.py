"""acpo train: from logged data to a policy in a run directory."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field, make_dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from acpo.algorithms import Choice, choose, make_algorithm
from acpo.cci import regime
from acpo.data import DEFAULT, DataOptions
from acpo.data.registry import columns, load
from acpo.errors import UserError
from acpo.files import write_json
from acpo.tasks import BEHAVIOR_CLONING, find_task, reference
from acpo.training.loop import Interrupted, Run, TrainConfig, train
from acpo.training.reporting import ConsoleReporter


@dataclass(frozen=True)
class TrainArguments:
    """Train a policy on logged data and keep everything about the run in one directory.

    Without DATASET the built-in Hopper data is used. Ctrl-C stops cleanly; the same command with
    --out DIR --resume continues exactly where it stopped.
    """

    dataset: tyro.conf.Positional[str] = DEFAULT
    """A task (acpo tasks), another name (acpo data list), a file (HDF5 in D4RL's layout, NPZ, CSV,
    Parquet, our store), a folder of tables, a Minari id, or several joined by '+'."""
    algorithm: str = "acpo"
    """acpo, or a fixed constraint: awac (λ=α), inac (λ=0), wbc (λ=100); bc (no weights); or another
    method of acpo algorithms, as its authors set it."""
    preset: str = "default"
    """default; paper: the paper's numbers for the task; for other data one row of its tables:
    paper-d4rl-hopper, paper-neorl2-dmsd, … For methods of others: what their authors set for a
    suite (mujoco, antmaze, kitchen, neorl2) or task. Any flag overrides its number."""
    out: Path | None = None
    """Run directory; by default a new one under runs/."""
    resume: bool = False
    """Continue the run in --out (or begin it, if there is none yet)."""
    json: Path | None = None
    """Also write the final numbers to this file."""
    data: Annotated[DataOptions, tyro.conf.arg(name="")] = field(default_factory=DataOptions)
    training: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)


def parse(words: list[str]) -> Any:
    """The flags of `TrainArguments` and of the chosen algorithm's config, in one command line.

    Their defaults depend on the preset and on the task, so the words are read twice: first to
    learn which dataset is meant. By default, too, a task has its own episodes per evaluation and
    its own reward.
    """
    name, preset = _peek(words, "algorithm", "acpo"), _peek(words, "preset", "default")
    asked = [word for word in words if word not in ("-h", "--help")]
    dataset = _parse(asked, _with_density(words, Choice(make_algorithm(name)))).dataset
    return _parse(words, _with_density(words, choose(name, preset, dataset)))


def _with_density(words: list[str], choice: Choice) -> Choice:
    """A method that fits the density of --behavior, without what only its own density can use."""
    model = _peek(words, "behavior", "")
    if not model or not hasattr(choice.algorithm, "behavior"):
        return choice
    behavior = choice.algorithm.behavior.of(model)
    return choice._replace(algorithm=replace(choice.algorithm, behavior=behavior))


def _parse(words: list[str], choice: Choice) -> Any:
    algorithm, relabel, episodes, _ = choice
    kind: Any = Annotated[type(algorithm), tyro.conf.arg(name="")]
    arguments = make_dataclass(
        "TrainArguments",
        [("config", kind, field(default=algorithm))],
        bases=(TrainArguments,),
        frozen=True,
    )
    arguments.__doc__ = TrainArguments.__doc__
    training = TrainConfig() if episodes is None else TrainConfig(episodes=episodes)
    default = arguments(data=DataOptions(relabel=relabel), training=training)
    return tyro.cli(arguments, prog="acpo train", args=words, default=default)


def _peek(words: list[str], flag: str, default: str) -> str:
    """The value of a flag that decides which other flags there are."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == f"--{flag}":
            if not equals and i + 1 >= len(words):
                raise UserError(f"--{flag} needs a value.")
            return value if equals else words[i + 1]
    return default


def main(words: list[str]) -> int:
    arguments = parse(words)
    data = load(arguments.dataset, arguments.data)
    out = arguments.out
    if out is None:
        if arguments.resume:
            raise UserError("--resume needs to know which run: give its directory with --out.")
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        out = Path("runs") / f"{data.name.replace('/', '-')}-{arguments.algorithm}-{stamp}"
    console = Console()
    # Paths and E[log πβ] may hold brackets: they are no markup.
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(f"data      {data!r}")
    for line in columns(arguments.dataset, arguments.data):
        say(f"          {line}")
    if note := choose(arguments.algorithm, arguments.preset, arguments.dataset).note:
        say(f"preset    {note}")
    if arguments.data.relabel:
        say(f"reward    {arguments.data.relabel}")
    say(f"run       {out}")
    try:
        run = train(
            data,
            arguments.config,
            out=out,
            resume=arguments.resume,
            reporter=ConsoleReporter(console),
            **vars(arguments.training),
        )
    except Interrupted as stopped:
        again = [w for w in words if w != "--resume"]
        if arguments.out is None:
            again += ["--out", str(out)]
        command = shlex.join(["acpo", "train", *again, "--resume"])
        print(f"\nStopped {stopped}; nothing is lost. Continue with:\n  {command}", file=sys.stderr)
        return 130
    found = summary(run, arguments.data.relabel)
    write_json(out / "summary.json", found)
    if arguments.json:
        write_json(arguments.json, found)
    for line in describe(run, found):
        say(line)
    return 0


def summary(run: Run, relabel: str | None = None) -> dict[str, Any]:
    """The final numbers: last checkpoint, mean and deviation over seeds.

    Data has a score only where its rewards are those that the task counts.
    """
    scale = reference(run.environment)
    # The data's returns have theirs also where policies are evaluated elsewhere, or not at all.
    data_scale = reference(run.environment, run.data.name)
    task = find_task(run.environment or "") or find_task(run.data.name)
    comparable = relabel is None and (task is None or task.data_comparable)
    found: dict[str, Any] = {
        "algorithm": type(run.algorithm).__name__,
        "dataset": run.data.name,
        "environment": run.environment,
        "seeds": run.metrics["seed"].unique().sort().to_list(),
        "steps": run.metrics["step"].max(),
        "checkpoint": "last",
        "relabel": relabel,
        "data_mean_return": run.data.mean_return,
        "directory": str(run.directory) if run.directory else None,
    }
    returns = run.final_returns
    if returns is not None:
        found |= {"return_mean": returns.mean(), "return_std": returns.std()}
        found["returns"] = returns.tolist()
    cloning = BEHAVIOR_CLONING.get(run.data.fingerprint)
    if cloning is not None:
        found["behavior_cloning_return"] = cloning
    if data_scale:
        for name in ("data_mean_return", "behavior_cloning_return"):
            if name in found and (comparable or name != "data_mean_return"):
                found[name.replace("return", "score")] = data_scale.score(found[name])
    if scale and returns is not None:
        found["score_mean"] = scale.score(returns.mean())
        found["score_std"] = scale.score(returns).std()
    if "dial/lambda" in run.metrics.columns:
        last = run.metrics.filter(run.metrics["step"] == run.metrics["step"].max())
        lam = float(last["dial/lambda"].to_numpy().mean())
        found |= {
            "lambda": lam,
            "alpha": run.algorithm.alpha,
            "epsilon": run.algorithm.rule.epsilon,
        }
        found["regime"] = regime(lam, run.algorithm.alpha)
        found["constraint"] = float(last["dial/constraint"].to_numpy().mean())
        if "weights/cloning" in last.columns:
            found["cloning"] = float(last["weights/cloning"].to_numpy().mean())
    return {k: float(v) if isinstance(v, float) else v for k, v in found.items()}


def describe(run: Run, found: dict[str, Any]) -> list[str]:
    """The same for a person."""

    def amount(kind: str) -> str:
        name = f"{kind}_return" if f"{kind}_return" in found else f"{kind}_mean_return"
        text = f"return {found[name]:.0f}"
        score = name.replace("return", "score")
        return f"score {found[score]:.1f} ({text})" if score in found else text

    lines = [""]
    if "return_mean" in found:
        spread = f"return {found['return_mean']:.0f} ± {found['return_std']:.0f}"
        if "score_mean" in found:
            spread = f"score {found['score_mean']:.1f} ± {found['score_std']:.1f} ({spread})"
        count = len(found["seeds"])
        lines.append(f"learned   {spread}, {count} seed{'s' if count > 1 else ''}, last checkpoint")
    else:
        lines.append("learned   not evaluated: the data names no environment (give one with --env)")
    relabelled = f" of '{found['relabel']}'" if found["relabel"] else ""
    lines.append(f"data      {amount('data')}{relabelled}")
    if "behavior_cloning_return" in found:
        lines.append(f"cloning   {amount('behavior_cloning')}, behaviour cloning on the same data")
    if "lambda" in found:
        lines.append(
            f"dial      λ = {found['lambda']:.3g} (α = {found['alpha']:g}): {found['regime']}; "
            f"E[log πβ] = {found['constraint']:.2f}, ε = {found['epsilon']:.2f}"
        )
    if found.get("cloning"):
        lines.append(
            f"held      {found['cloning']:.0%} of the loss is plain cloning: weights alone "
            "left the policy far outside ε"
        )
    directory = run.directory
    if directory:
        first = found["seeds"][0]
        lines += [
            f"policy    {directory / 'policies' / f'seed-{first}.npz'}",
            f"metrics   {directory / 'metrics.parquet'}",
            f"again     acpo evaluate {directory}",
        ]
    return lines
