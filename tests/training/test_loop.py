"""Training from Python: what a run returns, and what stops it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl
import pytest

import acpo
from acpo.cli import main
from acpo.data import Dataset
from acpo.errors import UserError
from acpo.training import program
from acpo.training.loop import EVALUATION_SEED, Interrupted, Run, TrainConfig
from harness import (
    FULL_DISK,
    SETTINGS,
    TINY,
    StopsAt,
    assert_same_run,
    contents,
    run_acpo,
    tiny_acpo,
)

TINY_BC = acpo.BC(hidden=(16, 16), head="plain")

# What the README promises about the dial and the weights.
DIAGNOSTICS = {
    *("dial/lambda", "dial/constraint", "dial/slack", "dial/clipped"),
    *("weights/clipped", "weights/effective_sample_size"),
    *("value/loss", "critic/loss", "policy/loss"),
    *(f"behavior/log_beta_{who}_q{q}" for who in ("data", "policy") for q in (10, 50, 90)),
}


@pytest.fixture(scope="module")
def data(hopper_file: Path) -> Dataset:
    return acpo.load_dataset(hopper_file)


@pytest.fixture(scope="module")
def run(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trained from Python without `out`, in a folder that must stay empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        run = acpo.train(data, tiny_acpo(), **SETTINGS)
        assert not list(Path.cwd().iterdir())
    return run


def test_python_and_the_command_train_the_same_run(run: Run, finished_run: Path) -> None:
    for table in ("metrics", "evaluations"):
        assert getattr(run, table).equals(pl.read_parquet(finished_run / f"{table}.parquet"))
    stored = acpo.load_policy(finished_run)
    for ours, theirs in zip(
        run.policy.actor.network.weights, stored.actor.network.weights, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_a_run_without_out_has_a_policy_but_no_directory(run: Run, data: Dataset) -> None:
    assert run.directory is None
    action = run.policy(data.observations[0])
    assert action.shape == (3,)
    assert np.abs(action).max() <= 1


def test_metrics_have_a_row_per_log_interval_and_every_diagnostic(run: Run) -> None:
    assert run.metrics["step"].to_list() == list(range(10, 301, 10))
    assert set(run.metrics.columns) >= DIAGNOSTICS | {"step", "seed"}
    assert run.metrics.null_count().sum_horizontal().item() == 0
    assert np.isfinite(run.metrics.to_numpy()).all()
    assert run.metrics["weights/effective_sample_size"].is_between(0, 1).all()
    # A running mean over 100 steps of what each row has averaged over its ten.
    slack, kept = -1.0, (1 - 1 / run.algorithm.rule.slack_steps) ** 10
    for constraint, found in run.metrics.select("dial/constraint", "dial/slack").iter_rows():
        slack = kept * slack + (1 - kept) * (constraint - run.algorithm.epsilon)
        assert found == pytest.approx(slack, abs=0.1)


def test_evaluations_have_a_row_per_episode_and_final_returns_are_their_last(run: Run) -> None:
    assert run.evaluations["step"].to_list() == [100, 100, 200, 200, 300, 300]
    assert run.evaluations["episode"].to_list() == [0, 1] * 3
    last = run.evaluations.filter(pl.col("step") == 300)["return"]
    assert run.final_returns is not None
    np.testing.assert_allclose(run.final_returns, [last.mean()])


def test_evaluation_episodes_start_from_their_own_seeds(run: Run) -> None:
    env = acpo.make_env("Hopper-v4")
    observation, _ = env.reset(seed=EVALUATION_SEED + 1)
    total, over = 0.0, False
    while not over:
        observation, reward, terminal, timeout, _ = env.step(run.policy(observation))
        total, over = total + float(reward), terminal or timeout
    # Evaluation runs episodes as a batch, whose products may round differently.
    assert run.evaluations["return"][-1] == pytest.approx(total, rel=1e-3)


def test_each_seed_has_a_policy_and_a_final_return(data: Dataset) -> None:
    settings = {**SETTINGS, "steps": 60}
    both = acpo.train(data, TINY_BC, seed=4, seeds=2, **settings)
    assert [policy.info["seed"] for policy in both.policies] == [4, 5]
    assert both.final_returns is not None
    assert both.final_returns.shape == (2,)
    assert not np.array_equal(
        both.policies[0].actor.network.weights[0], both.policies[1].actor.network.weights[0]
    )
    alone = acpo.train(data, TINY_BC, seed=5, **settings)
    for w, other in zip(
        alone.policy.actor.network.weights, both.policies[1].actor.network.weights, strict=True
    ):
        np.testing.assert_allclose(w, other, atol=1e-4)


def test_seeds_as_one_batch_equal_seeds_in_turn(data: Dataset) -> None:
    """Off the CPU seeds are vmapped; rounding apart, that is the same program."""
    settings = {"steps": 40, "log_every": 20, "env": "none", "seeds": 2}
    in_turn = acpo.train(data, tiny_acpo(), **settings).metrics
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program.jax, "default_backend", lambda: "gpu")
        together = acpo.train(data, tiny_acpo(), **settings).metrics
    assert not in_turn.equals(together)  # batched products round otherwise
    assert in_turn.columns == together.columns
    np.testing.assert_allclose(in_turn.to_numpy(), together.to_numpy(), rtol=2e-3, atol=2e-3)


def test_a_second_run_of_equal_method_and_sizes_compiles_nothing(data: Dataset) -> None:
    settings: dict[str, Any] = {"steps": 20, "log_every": 10, "env": "none"}
    first = acpo.train(data, TINY_BC, **settings)
    compiled = program._chunk._cache_size()
    again = acpo.train(data, replace(TINY_BC), **settings, seed=1)
    acpo.train(data, TINY_BC, **settings, seeds=3)
    assert program._chunk._cache_size() == compiled
    assert not again.metrics.equals(first.metrics)
    acpo.train(data, replace(TINY_BC, hidden=(8,)), **settings)
    assert program._chunk._cache_size() == compiled + 1


def test_without_an_environment_nothing_is_evaluated(data: Dataset) -> None:
    run = acpo.train(data, TINY_BC, env="none", **{**SETTINGS, "steps": 10})
    assert run.final_returns is None
    assert run.policy.info["environment"] is None


@pytest.mark.parametrize(
    ("step", "border"), [(0, 10), (9, 10), (10, 20), (20, 25), (25, 30), (50, 54)]
)
def test_a_chunk_ends_at_the_next_log_evaluation_or_last_step(step: int, border: int) -> None:
    assert TrainConfig(steps=54, log_every=10, eval_every=25).border(step) == border


@pytest.mark.parametrize("name", ["steps", "seeds", "eval_every", "episodes", "log_every"])
def test_counts_below_one_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')} is 0"):
        TrainConfig(**{name: 0})


@pytest.mark.parametrize("seed", [-1, 2**31 - 1, 3_000_000_000])
def test_seeds_that_no_generator_takes_are_refused(seed: int) -> None:
    with pytest.raises(UserError, match=f"--seed is {seed}; it must be between 0 and"):
        TrainConfig(seed=seed)


# --- what stops a run ---------------------------------------------------------------------------


def test_a_full_disk_ends_the_run_and_leaves_its_checkpoint(
    data: Dataset, hopper_file: Path, finished_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        acpo.train(data, tiny_acpo(), out=out, reporter=StopsAt(150), **SETTINGS)
    before = contents(out)
    words = ("train", hopper_file, *TINY, "--out", out, "--resume")
    failed = run_acpo(*words, script=FULL_DISK)
    assert failed.returncode == 2
    assert "Could not write" in failed.stderr
    assert "Free some space" in failed.stderr
    assert "Traceback" not in failed.stderr
    after = contents(out)
    before.pop("run.json")
    after.pop("run.json")
    assert after == before
    acpo.train(data, tiny_acpo(), out=out, resume=True, **SETTINGS)
    assert_same_run(finished_run, out)


def test_a_loss_that_is_not_finite_stops_the_command_with_step_and_quantity(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(hopper_file), *TINY, "--out", str(tmp_path / "run"), "--reward-scale", "1e30"]
    assert main(["train", *words]) == 2
    message = capsys.readouterr().err
    assert "critic/loss became NaN or infinite at step 1," in message
    assert "There is no checkpoint yet." in message
    assert "--reward-scale" in message
    assert not (tmp_path / "run" / "checkpoints").exists()


def spoil_chunks(patch: pytest.MonkeyPatch, spoil: Callable[..., Any]) -> None:
    """Run every compiled chunk through `spoil(chunk, states, keys, step, rows)`."""
    make_chunk = program.make_chunk
    patch.setattr(program, "make_chunk", lambda *words: partial(spoil, make_chunk(*words)))


def test_not_finite_names_the_last_good_checkpoint_which_resumes(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    settings: dict[str, Any] = {**SETTINGS, "steps": 40, "env": "none"}
    with pytest.raises(Interrupted):
        acpo.train(data, TINY_BC, out=out, reporter=StopsAt(20), **settings)
    good = contents(out)

    def one_bad_row(chunk: Any, states: Any, keys: Any, step: Any, rows: Any) -> Any:
        return chunk(states, keys, step, rows.at[7, 0].set(np.nan))

    with monkeypatch.context() as patch:
        spoil_chunks(patch, one_bad_row)
        with pytest.raises(UserError, match="became NaN or infinite at step 2") as error:
            acpo.train(data, TINY_BC, out=out, resume=True, **settings)
    last = out / "checkpoints" / "000000020.npz"
    assert f"The last good checkpoint is {last}." in str(error.value)
    assert contents(out) == good
    run = acpo.train(data, TINY_BC, out=out, resume=True, **settings)
    assert run.metrics["step"].max() == 40


def test_weights_that_are_not_finite_are_no_checkpoint(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses were fine; the last step they led to was not."""

    def overflow(chunk: Any, *arguments: Any) -> Any:
        states, metrics = chunk(*arguments)
        return jax.tree.map(lambda leaf: leaf * np.float32(np.inf), states), metrics

    out = tmp_path / "run"
    spoil_chunks(monkeypatch, overflow)
    with pytest.raises(UserError, match=r"weights.* became NaN or infinite at step 10\b"):
        acpo.train(data, TINY_BC, out=out, env="none", **{**SETTINGS, "steps": 10})
    assert not (out / "checkpoints").exists()


def test_q_beyond_what_the_rewards_allow_stops_the_run(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acpo.ACPO, "q_range", lambda self, rewards: (-1e-9, 1e-9))
    with pytest.raises(
        UserError, match=r"Q diverged: at step 10 it reaches .* allow -1e-09 to 1e-09"
    ):
        acpo.train(data, tiny_acpo(), out=tmp_path / "run", **SETTINGS)
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_the_range_of_q_is_that_of_the_discounted_rewards_and_entropy() -> None:
    algorithm = acpo.ACPO(alpha=5.0, entropy_price=0.1, gamma=0.9, log_prob_clip=2.0)
    # A reward of 3 and an entropy bonus of 5·0.1·2 for ever: 4/(1 − 0.9).
    assert algorithm.q_range((2.0, 3.0)) == pytest.approx((0.0, 40.0))
    assert algorithm.q_range((-2.0, -1.5)) == pytest.approx((-30.0, 0.0))
    assert acpo.ACPO(gamma=1.0).q_range((0.0, 1.0)) == (-np.inf, np.inf)
