"""The one loop: chunks of scanned updates, evaluation, logging, checkpoints."""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from acpo.actors import Deterministic, Mean, Network
from acpo.algorithms.base import Spec
from acpo.data import Dataset
from acpo.errors import Diverged, UserError
from acpo.evaluation.rollouts import Evaluator, normalized_score
from acpo.files import read_json
from acpo.networks import MLP
from acpo.policy import Policy
from acpo.training import program
from acpo.training.feeding import feeding
from acpo.training.prepare import Prepared, prepare
from acpo.training.reporting import Reporter
from acpo.training.run_directory import RunDirectory, as_noted
from acpo.training.stopping import Interrupted, not_finite, stop_on_signal

if TYPE_CHECKING:
    import polars as pl

CHECKPOINT_SECONDS = 5.0
# Evaluation episodes start from these seeds, far from any that data was collected with.
EVALUATION_SEED = 1_000_000
SEED_MAX = 2**31 - 1


@dataclass(frozen=True)
class TrainConfig:
    """How a run goes, whatever the algorithm."""

    steps: int = 1_000_000
    """Gradient steps; the learning-rate schedule spans them."""
    seed: int = 0
    """First seed."""
    seeds: int = 1
    """How many seeds to train at once: seed, seed+1, …"""
    eval_every: int = 5_000
    """Steps between two evaluations; the last step is always evaluated."""
    episodes: int = 10
    """Episodes per evaluation and seed."""
    log_every: int = 500
    """Steps between two rows of metrics; also the length of a compiled chunk."""
    memory_gb: float = 1.0
    """Data that needs more memory than this stays on disk and is gathered ahead by a thread."""
    env: str = "auto"
    """Task (acpo tasks) or Gymnasium id to evaluate in; auto: the one the data names; none: no
    evaluation."""

    def __post_init__(self) -> None:
        for name in ("steps", "seeds", "eval_every", "episodes", "log_every"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} is {getattr(self, name)}; it must be at least 1.")
        if not 0 <= self.seed <= SEED_MAX - self.seeds:
            raise UserError(f"--seed is {self.seed}; it must be between 0 and {SEED_MAX:,}.")

    def border(self, step: int) -> int:
        """Where the chunk that starts at `step` ends: the next log, evaluation or last step."""
        following = ((step // every + 1) * every for every in (self.log_every, self.eval_every))
        return min(*following, self.steps)


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    algorithm: Any
    """The algorithm as trained: every open field settled."""
    data: Dataset
    environment: str | None
    policies: list[Policy]
    metrics: pl.DataFrame
    evaluations: pl.DataFrame
    facts: dict[str, Any]
    directory: Path | None

    @property
    def policy(self) -> Policy:
        """The first seed's policy."""
        return self.policies[0]

    @property
    def final_returns(self) -> np.ndarray | None:
        """Mean return of each seed at the last checkpoint; None without an environment."""
        if not len(self.evaluations):
            return None
        import polars as pl

        last = self.evaluations.filter(pl.col("step") == pl.col("step").max())
        return last.group_by("seed").agg(pl.col("return").mean()).sort("seed")["return"].to_numpy()


def train(
    data: Dataset,
    algorithm: Any,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    behavior_folder: Path | None = None,
    reporter: Reporter | None = None,
    **settings: Any,
) -> Run:
    """Train `algorithm` on `data`; `settings` are the fields of `TrainConfig` (steps, seeds, …).

    With `out` the run is kept in that directory and can be resumed exactly; without, nothing is
    written. Runs on the same data with the same πβ may share it in one `behavior_folder`; by
    default each keeps its own. Raises `UserError` for a problem the user can mend, `Interrupted`
    after Ctrl-C.
    """
    stop = threading.Event()
    with stop_on_signal(stop):
        return _Training(
            data, algorithm, TrainConfig(**settings), out, resume, behavior_folder, reporter, stop
        ).run()


def kept_results(data: Dataset, algorithm: Any, *, out: Path, **settings: Any) -> Run | None:
    """What a finished run found, where its directory was kept without checkpoints; else None.

    The run must be the one that `train` would resume with these arguments. It comes without
    policies, which may not have been kept either.
    """
    if not (out / "config.json").exists() or (out / "checkpoints").exists():
        return None
    config = TrainConfig(**settings)
    training = _Training(data, algorithm, config, out, True, None, None, threading.Event())
    if training.evaluator:
        training.evaluator.close()
    return training.kept()


class _Training:
    def __init__(
        self,
        data: Dataset,
        algorithm: Any,
        config: TrainConfig,
        out: str | Path | None,
        resume: bool,
        behavior_folder: Path | None,
        reporter: Reporter | None,
        stop: threading.Event,
    ) -> None:
        self.data, self.algorithm, self.config = data, algorithm, config
        self.behavior_folder = behavior_folder
        self.reporter = reporter or Reporter()
        self.environment = data.environment if config.env == "auto" else config.env
        if self.environment == "none":
            self.environment = None
        self.seeds = list(range(config.seed, config.seed + config.seeds))
        self.evaluator: Evaluator | None = None
        if self.environment:
            try:
                self.evaluator = Evaluator(self.environment, config.episodes)
            except UserError as error:
                raise UserError(f"{error} To train without evaluating: --env none.") from error
            self.evaluator.check("The data", data.observation_dim, data.action_dim)
        self.directory: RunDirectory | None = None
        if out is not None:
            self.directory = RunDirectory(Path(out), self._asked(), resume)
        self.tables: dict[str, list[pl.DataFrame]] = {"metrics": [], "evaluations": []}
        self.stop = stop

    def _asked(self) -> dict[str, Any]:
        return {
            "algorithm": type(self.algorithm).__name__,
            "algorithm_config": dataclasses.asdict(self.algorithm),
            "training": dataclasses.asdict(self.config),
            "environment": self.environment,
            "dataset": self.data.source,
            "fingerprint": self.data.fingerprint,
        }

    def run(self) -> Run:
        try:
            with self.reporter:
                prepared = self._prepare()
                states = self._loop(prepared)
        finally:
            if self.evaluator:
                self.evaluator.close()
        policies = self._policies(prepared, states)
        return self._finished(prepared.algorithm, policies, prepared.facts)

    def kept(self) -> Run | None:
        """A finished run by its tables and notes alone; None where these end before it did."""
        directory = self.directory
        assert directory is not None
        self._read_tables(directory, self.config.steps)
        names = ("metrics", "evaluations") if self.evaluator else ("metrics",)
        if any(self._table(name)["step"].max() != self.config.steps for name in names):
            return None
        path = directory.path / "run.json"
        noted = read_json(path)
        try:
            algorithm = as_noted(self.algorithm, noted["algorithm_config"])
            return self._finished(algorithm, [], noted["settled"])
        except KeyError as error:
            raise UserError(f"{path} lacks {error}; put back a copy of it.") from error

    def _finished(self, algorithm: Any, policies: list[Policy], facts: dict[str, Any]) -> Run:
        return Run(
            algorithm=algorithm,
            data=self.data,
            environment=self.environment,
            policies=policies,
            metrics=self._table("metrics"),
            evaluations=self._table("evaluations"),
            facts=facts,
            directory=self.directory.path if self.directory else None,
        )

    def _read_tables(self, directory: RunDirectory, up_to: int) -> None:
        for name, tables in self.tables.items():
            table = directory.read_table(name, up_to)
            if table is not None:
                tables.append(table)

    def _require_tables(self, directory: RunDirectory, step: int) -> None:
        """They are written before the checkpoint, so that they reach as far unless one was lost."""
        ends = {"metrics": step}
        if self.evaluator:
            every = self.config.eval_every
            ends["evaluations"] = step if step == self.config.steps else step // every * every
        for name, end in ends.items():
            if end and not (self._table(name)["step"] >= end).any():
                raise UserError(
                    f"{directory.path / name}.parquet is missing or ends before the checkpoint at "
                    f"step {step:,}. Put back a copy of it, or begin again: choose another folder "
                    "with --out."
                )

    def _prepare(self) -> Prepared:
        def on_fit(head: str, state: Any) -> None:
            self.reporter.fitting(head, int(state.step), float(state.best_log_prob))
            if self.stop.is_set():
                raise Interrupted("while fitting the behaviour density")

        prepared = prepare(
            self.data,
            self.algorithm,
            directory=self.directory.path if self.directory else None,
            behavior_folder=self.behavior_folder,
            on_fit=on_fit,
            memory_gb=self.config.memory_gb,
        )
        if self.directory:
            self.directory.note(
                fingerprint=self.data.fingerprint,
                data=repr(self.data),
                settled=prepared.facts,
                algorithm_config=dataclasses.asdict(prepared.algorithm),
            )
        return prepared

    def _loop(self, prepared: Prepared) -> Any:
        config, algorithm = self.config, prepared.algorithm
        spec = Spec(self.data.observation_dim, self.data.action_dim, config.steps)
        states, keys = program.init(algorithm, spec, jnp.asarray(self.seeds))
        step = 0
        tree = {"states": states, "keys": jax.random.key_data(keys)}
        if self.directory and (found := self.directory.load_checkpoint(tree)):
            step, tree = found
            states = jax.device_put(tree["states"])
            keys = jax.random.wrap_key_data(jnp.asarray(tree["keys"]))
            self._read_tables(self.directory, step)
            self._require_tables(self.directory, step)
        self.reporter.begin(step, config.steps)
        with feeding(prepared.rows, algorithm, keys) as fed:
            return self._updates(prepared, states, keys, step, fed)

    def _updates(self, prepared: Prepared, states: Any, keys: Any, step: int, fed: Any) -> Any:
        config, algorithm = self.config, prepared.algorithm
        gathered = isinstance(prepared.rows, np.memmap)
        chunks: dict[int, Any] = {}
        saved_at = time.monotonic()
        while step < config.steps:
            border = config.border(step)
            length = border - step
            if length not in chunks:
                chunks[length] = program.make_chunk(algorithm, prepared.layout, length, gathered)
            rows = fed(step, border, config.border(border))
            states, metrics = chunks[length](states, keys, jnp.int32(step), rows)
            metrics = jax.device_get(metrics)
            if bad := program.first_not_finite(metrics, step):
                self._stop_on_not_finite(*bad)
            step = border
            self._stop_on_divergence(step, prepared, metrics)
            if bad_weights := not_finite(states):
                self._stop_on_not_finite(step, bad_weights)
            self._log(step, metrics)
            if self.evaluator and (step % config.eval_every == 0 or step == config.steps):
                self._evaluate(step, self._policies(prepared, states))
            last = step == config.steps or self.stop.is_set()
            if self.directory and (last or time.monotonic() - saved_at > CHECKPOINT_SECONDS):
                self._checkpoint(step, prepared, states, keys)
                saved_at = time.monotonic()
            if self.stop.is_set() and step < config.steps:
                raise Interrupted(f"at step {step:,}")
        return states

    def _log(self, step: int, metrics: dict[str, np.ndarray]) -> None:
        """Per-step quantities are averaged over the chunk; λ is the last one's."""
        import polars as pl

        means = {
            name: values[:, -1]
            if name == "dial/lambda"
            else values.reshape(len(values), -1).mean(1)
            for name, values in metrics.items()
        }
        table = {"step": [step] * len(self.seeds), "seed": self.seeds, **means}
        self.tables["metrics"].append(pl.DataFrame(table))
        self.reporter.progress(step, {name: float(v.mean()) for name, v in means.items()})

    def _evaluate(self, step: int, policies: list[Policy]) -> None:
        import polars as pl

        assert self.evaluator is not None
        rollouts = self.evaluator(policies, EVALUATION_SEED)
        seeds, episodes = rollouts.returns.shape
        score = normalized_score(self.environment, rollouts.returns)
        self.tables["evaluations"].append(
            pl.DataFrame(
                {
                    "step": np.full(seeds * episodes, step),
                    "seed": np.repeat(self.seeds, episodes),
                    "episode": np.tile(np.arange(episodes), seeds),
                    "return": rollouts.returns.ravel(),
                    "length": rollouts.lengths.ravel(),
                    "score": score.ravel() if score is not None else [None] * (seeds * episodes),
                },
                schema_overrides={"score": pl.Float64},
            )
        )
        self.reporter.evaluated(step, rollouts.returns, score)

    def _policies(self, prepared: Prepared, states: Any) -> list[Policy]:
        algorithm = prepared.algorithm
        actor = algorithm.actor(states)
        if isinstance(actor, MLP):
            kind = Deterministic if algorithm.head == "deterministic" else Mean
            actor = kind(Network(actor.weights, actor.biases))
        actor = jax.device_get(actor)
        return [
            Policy(
                actor=jax.tree.map(itemgetter(k), actor),
                observation_mean=prepared.normalizer.mean,
                observation_std=prepared.normalizer.std,
                info={
                    "algorithm": type(self.algorithm).__name__,
                    "dataset": self.data.name,
                    "environment": self.environment,
                    "head": algorithm.head,
                    "seed": seed,
                },
                features=self.data.features,
            )
            for k, seed in enumerate(self.seeds)
        ]

    def _table(self, name: str) -> pl.DataFrame:
        import polars as pl

        parts = self.tables[name]
        if len(parts) > 1:
            self.tables[name] = parts = [pl.concat(parts, how="diagonal")]
        return parts[0] if parts else pl.DataFrame(schema={"step": pl.Int64})

    def _checkpoint(self, step: int, prepared: Prepared, states: Any, keys: Any) -> None:
        """Tables first: a checkpoint must never be ahead of the metrics it continues."""
        assert self.directory is not None
        for name in self.tables:
            self.directory.write_table(name, self._table(name))
        for policy in self._policies(prepared, states):
            policy.save(self.directory.path / "policies" / f"seed-{policy.info['seed']}.npz")
        self.directory.save_checkpoint(step, {"states": states, "keys": jax.random.key_data(keys)})

    def _stop_on_divergence(
        self, step: int, prepared: Prepared, metrics: dict[str, np.ndarray]
    ) -> None:
        """Q beyond what the rewards allow is no estimate of anything; a policy trained on it
        would be no better."""
        if not hasattr(prepared.algorithm, "q_range"):
            return
        low, high = prepared.algorithm.q_range(prepared.facts["rewards"])
        least, largest = metrics["critic/q_min"].min(), metrics["critic/q_max"].max()
        if low <= least and largest <= high:
            return
        raise Diverged(
            f"Q diverged: at step {step:,} it reaches {largest if largest > high else least:.4g}, "
            f"while the data's rewards allow {low:.4g} to {high:.4g} at most, so the run was "
            f"stopped. {self._last_good()} A smaller --tau, or --layer-norm where it is off, "
            "may help."
        )

    def _last_good(self) -> str:
        last = self.directory.last_checkpoint() if self.directory else None
        return f"The last good checkpoint is {last}." if last else "There is no checkpoint yet."

    def _stop_on_not_finite(self, step: int, quantity: str) -> None:
        raise Diverged(
            f"{quantity} became NaN or infinite at step {step:,}, so the run was stopped. "
            f"{self._last_good()} A smaller --learning-rate or --reward-scale usually helps."
        )
