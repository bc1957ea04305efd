"""acpo evaluate: the returns of a run's policies, printed and stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import acpo
from acpo.cli import main
from acpo.policy import load_policy
from harness import run_acpo


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def evaluate(*words: Any) -> int:
    return main(["evaluate", *map(str, words)])


def test_the_real_command_prints_and_stores_raw_returns(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    done = run_acpo("evaluate", run, "--episodes", 3, "--seed", 5, "--json", file)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert json.loads((run / "evaluation-seed5-x3.json").read_text()) == found
    assert f"return {found['return_mean']:.1f} ± 0.0" in done.stdout
    assert "over 3 episodes of Hopper-v4" in done.stdout

    policy, env = acpo.load_policy(run), acpo.make_env("Hopper-v4")
    for episode, total in enumerate(found["returns"][0]):
        observation, _ = env.reset(seed=5 + episode)
        expected, over = 0.0, False
        while not over:
            observation, reward, terminal, timeout, _ = env.step(policy(observation))
            expected, over = expected + float(reward), terminal or timeout
        assert total == pytest.approx(expected, rel=1e-3)
    assert found["return_mean"] == pytest.approx(np.mean(found["returns"]))


def test_the_same_seed_gives_the_same_numbers_and_another_others(run: Path) -> None:
    stored = run / "evaluation-seed3-x2.json"
    assert evaluate(run, "--episodes", 2, "--seed", 3) == 0
    first = json.loads(stored.read_text())
    assert evaluate(run, "--episodes", 2, "--seed", 3) == 0
    assert json.loads(stored.read_text()) == first
    assert evaluate(run, "--episodes", 2, "--seed", 30) == 0
    other = json.loads((run / "evaluation-seed30-x2.json").read_text())
    assert other["returns"] != first["returns"]


def test_a_policy_file_is_enough(run: Path, tmp_path: Path) -> None:
    policy = shutil.copy(run / "policies" / "seed-0.npz", tmp_path / "mine.npz")
    file = tmp_path / "numbers.json"
    assert evaluate(policy, "--episodes", 2, "--json", file) == 0
    assert evaluate(run, "--episodes", 2) == 0
    stored = json.loads((run / "evaluation-seed0-x2.json").read_text())
    assert json.loads(file.read_text())["returns"] == stored["returns"]


def test_several_policies_are_evaluated_and_averaged(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(run)
    policy.info["seed"] = 1
    policy.biases[-1][:] += 1
    policy.save(run / "policies" / "seed-1.npz")
    assert evaluate(run, "--episodes", 2) == 0
    assert "over 2 policies × 2 episodes" in capsys.readouterr().out
    found = json.loads((run / "evaluation-seed0-x2.json").read_text())
    per_seed = np.mean(found["returns"], axis=1)
    assert found["policy_seeds"] == [0, 1]
    assert per_seed[0] != per_seed[1]
    assert found["return_mean"] == pytest.approx(per_seed.mean())
    assert found["return_std"] == pytest.approx(per_seed.std())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--episodes", 0], "--episodes is 0"),
        (["--env", "Walker2d-v4"], "The policy has 11 observations and 3 actions"),
        (["--env", "Hoper-v4"], "'Hoper-v4' cannot be made"),
        (["--json", "/dev/null/x.json"], "Could not write"),
    ],
)
def test_bad_flags_are_refused(
    words: list[Any], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(run, "--episodes", 1, *words) == 2
    assert message in capsys.readouterr().err


def test_an_absent_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(tmp_path / "absent") == 2
    assert str(tmp_path / "absent") in capsys.readouterr().err
    assert evaluate(tmp_path) == 2
    assert "holds no policy" in capsys.readouterr().err


def test_a_policy_without_environment_asks_for_one(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(run)
    policy.info["environment"] = None
    policy.save(run / "policies" / "seed-0.npz")
    assert evaluate(run) == 2
    assert "give one with --env" in capsys.readouterr().err
    assert evaluate(run, "--env", "Hopper-v4", "--episodes", 1) == 0
