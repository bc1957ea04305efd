"""A policy file is all one needs to act."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from acpo.actors import Mean, Network
from acpo.data.features import Features
from acpo.errors import UserError
from acpo.files import load_arrays, save_arrays
from acpo.policy import Policy, load_policies, load_policy


@pytest.fixture
def policy() -> Policy:
    rng = np.random.default_rng(0)
    sizes = (3, 4, 2)
    network = Network(
        tuple(rng.normal(size=s).astype(np.float32) for s in pairwise(sizes)),
        tuple(rng.normal(size=s).astype(np.float32) for s in sizes[1:]),
    )
    return Policy(
        Mean(network),
        np.array([1.0, 0.0, -1.0], np.float32),
        np.array([2.0, 1.0, 0.5], np.float32),
        {"seed": 7, "environment": "Hopper-v4"},
    )


def test_the_action_is_the_squashed_mean_of_normalised_observations(policy: Policy) -> None:
    observation = np.array([3.0, 0.5, -1.5])
    x = np.array([1.0, 0.5, -1.0])
    hidden = np.maximum(x @ policy.actor.network.weights[0] + policy.actor.network.biases[0], 0)
    output = hidden @ policy.actor.network.weights[1] + policy.actor.network.biases[1]
    # One action of a mean and a log σ; the second column is the latter.
    np.testing.assert_allclose(policy(observation), np.tanh(output[:1]), rtol=1e-6)


def test_a_batch_is_the_same_as_its_rows(policy: Policy) -> None:
    batch = np.random.default_rng(1).normal(size=(5, 3))
    np.testing.assert_allclose(policy(batch), [policy(row) for row in batch], rtol=1e-5)
    assert policy(batch).shape == (5, 1)


def test_observations_of_another_size_are_refused(policy: Policy) -> None:
    with pytest.raises(UserError, match=r"observations of 3 numbers, but was given shape \(4,\)"):
        policy(np.zeros(4))


def test_a_saved_policy_acts_the_same_and_remembers_its_origin(
    policy: Policy, tmp_path: Path
) -> None:
    policy.save(tmp_path / "p.npz")
    again = load_policy(tmp_path / "p.npz")
    batch = np.random.default_rng(1).normal(size=(5, 3))
    np.testing.assert_array_equal(again(batch), policy(batch))
    assert again.info == policy.info
    assert (again.observation_dim, again.action_dim) == (3, 1)


def test_a_policy_needs_no_jax(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path / "p.npz")
    script = (
        "import sys, acpo; policy = acpo.load_policy(sys.argv[1]); print(policy([1, 2, 3])[0])\n"
        "assert 'jax' not in sys.modules"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "p.npz")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(float(policy([1, 2, 3])[0]))


def test_a_run_directory_gives_its_policies_in_the_order_of_seeds(
    policy: Policy, tmp_path: Path
) -> None:
    for seed in (10, 9):
        policy.info["seed"] = seed
        policy.save(tmp_path / "policies" / f"seed-{seed}.npz")
    assert [found.info["seed"] for found in load_policies(tmp_path)] == [9, 10]
    assert load_policy(tmp_path).info["seed"] == 9


def test_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no policy"):
        load_policy(tmp_path)
    with pytest.raises(UserError, match="File not found"):
        load_policy(tmp_path / "absent.npz")
    save_arrays(tmp_path / "checkpoint.npz", {"x": np.zeros(3)}, {"step": 3})
    with pytest.raises(UserError, match="is not a policy file"):
        load_policy(tmp_path / "checkpoint.npz")


@pytest.mark.parametrize(
    ("lost", "changed"),
    [
        ("observation_mean", {}),
        ("", {"actor": None}),
        ("", {"actor": "Oracle"}),
        ("", {"features": [1]}),
    ],
)
def test_a_policy_file_of_which_a_part_is_lost_is_refused_by_name(
    policy: Policy, tmp_path: Path, lost: str, changed: dict[str, object]
) -> None:
    policy.save(tmp_path / "policy.npz")
    arrays, header = load_arrays(tmp_path / "policy.npz")
    arrays.pop(lost, None)
    header = {k: v for k, v in {**header, **changed}.items() if v is not None}
    save_arrays(tmp_path / "lost.npz", arrays, header)
    with pytest.raises(UserError, match=r"lost.npz is not a whole policy file"):
        load_policy(tmp_path / "lost.npz")


def test_a_policy_taught_units_answers_in_them_and_takes_records(
    policy: Policy, tmp_path: Path
) -> None:
    features = Features(("t", "mode"), {"mode": ("auto", "hand")}, ("valve",), (0.0,), (100.0,))
    taught = dataclasses.replace(policy, features=features)
    taught.save(tmp_path / "p.npz")
    again = load_policy(tmp_path / "p.npz")
    unit = policy(np.array([3.0, 1.0, 0.0]))
    np.testing.assert_allclose(again({"t": 3, "mode": "auto"}), 50 * (unit + 1), rtol=1e-6)
    np.testing.assert_allclose(again.unit_action([3.0, 1.0, 0.0]), unit)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"t": 3}, "lacks the column 'mode'"),
        ({"t": 3, "mode": "off"}, "'off' is no category of 'mode'; the data had auto, hand"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(
    policy: Policy, record: dict[str, object], message: str
) -> None:
    features = Features(("t", "mode"), {"mode": ("auto", "hand")})
    with pytest.raises(UserError, match=message):
        dataclasses.replace(policy, features=features)(record)


def test_a_record_needs_a_policy_that_knows_names(policy: Policy) -> None:
    with pytest.raises(UserError, match="no column names"):
        policy({"t": 3})
