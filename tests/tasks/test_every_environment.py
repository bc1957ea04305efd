"""What holds for every environment of the paper: a seed decides all, and nothing is printed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import acpo

GYMNASIUMS = ("d4rl/hopper", "d4rl/halfcheetah", "d4rl/walker2d")
NEEDS = {"kitchen": "gymnasium_robotics", "Fusion": "neorl2"}
NAMES = (
    *(f"{robot}-medium-v2" for robot in GYMNASIUMS),
    *(f"d4rl/antmaze-{maze}-v2" for maze in ("umaze", "medium-play", "large-diverse")),
    *(f"d4rl/kitchen-{kind}-v0" for kind in ("complete", "partial", "mixed")),
    "neorl2/DMSD",
    "neorl2/Fusion",
    "neorl2/Pipeline",
    "neorl2/RandomFrictionHopper",
    "neorl2/RocketRecovery",
    "neorl2/SafetyHalfCheetah",
    "neorl2/Simglucose",
)


def missing(name: str) -> str | None:
    """The package without which this environment cannot be made."""
    packages = (package for word, package in NEEDS.items() if word in name)
    return next((p for p in packages if importlib.util.find_spec(p) is None), None)


EVERY = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(bool(missing(name)), reason=f"{missing(name)}"))
        for name in NAMES
    ],
)


def episode(env: gymnasium.Env, seed: int) -> str:
    """A digest of twenty steps, to the last bit."""
    space = env.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    draw = np.random.default_rng(0)
    digest = hashlib.sha256(env.reset(seed=seed)[0].tobytes())
    for _ in range(20):
        observation, *rest, _ = env.step(draw.uniform(space.low, space.high).astype(np.float32))
        digest.update(observation.tobytes() + repr(rest).encode())
        if rest[1] or rest[2]:
            break
    return digest.hexdigest()


@pytest.fixture(scope="module")
def elsewhere() -> subprocess.CompletedProcess[str]:
    """All environments made and stepped in a process of their own, which shows every warning."""
    return subprocess.run(
        [sys.executable, "-W", "default", __file__], capture_output=True, text=True, check=False
    )


@EVERY
def test_a_seed_decides_an_episode_in_any_process(
    name: str, elsewhere: subprocess.CompletedProcess[str]
) -> None:
    random.seed(1)
    np.random.seed(1)
    first = acpo.make_env(name)
    once = episode(first, 3)
    random.seed(2)
    np.random.seed(2)
    before = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    assert episode(first, 4) != once
    assert episode(first, 3) == once
    assert episode(acpo.make_env(name), 3) == once
    after = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    assert after == before
    assert json.loads(elsewhere.stdout)[name] == once


@EVERY
def test_gymnasiums_checker_has_no_complaint(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if name.startswith(GYMNASIUMS):  # whose own observations have no bounds
            warnings.filterwarnings("ignore", message=".*space m(in|ax)imum value is -?infinity")
        check_env(acpo.make_env(name).unwrapped, skip_render_check=True)
    assert capsys.readouterr() == ("", "")


def test_nothing_is_printed_at_the_user(elsewhere: subprocess.CompletedProcess[str]) -> None:
    assert elsewhere.stderr == ""
    assert elsewhere.stdout.count("\n") == 1


if __name__ == "__main__":
    made = [name for name in NAMES if not missing(name)]
    print(json.dumps({name: episode(acpo.make_env(name), 3) for name in made}))
