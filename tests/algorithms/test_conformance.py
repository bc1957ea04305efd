"""What every algorithm must do, whatever it optimises: on the built-in data, by the real loop.

All runs of a method are of the same two programs, one seed and two, compiled once.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import acpo
from acpo.actors import to_arrays
from acpo.algorithms import ALGORITHMS, about, choose
from acpo.algorithms.acpo import ACPO
from acpo.algorithms.base import Spec
from acpo.algorithms.bc import BC
from acpo.algorithms.td3 import TD3, TD3State
from acpo.algorithms.td3_bc import TD3BC
from acpo.behavior.config import BehaviorConfig
from acpo.commands.train import parse
from acpo.data import Dataset
from acpo.errors import UserError
from acpo.networks import MLP
from acpo.tasks import TASKS
from acpo.training import program
from acpo.training.loop import Run
from acpo.training.prepare import Prepared, prepare
from acpo.training.stopping import Interrupted
from harness import StopsAt

CHUNK, STEPS = 20, 40
LONG = 400
# What a method minimises first of all; with a short horizon its target soon stands still.
OBJECTIVES = {
    "bc": ("policy/loss",),
    "swg": ("critic/loss", "denoiser/loss"),
}
# Where in a method's state that stands by which it acts; elsewhere trained.actor.
ACTS: dict[str, tuple[str, ...]] = {
    **{"bc": ("actor",), "bcq": ("trained", "perturbation"), "dtql": ("policy",)},
    **{"iql": ("policy",), "eql": ("policy",), "swg": ("denoiser",)},
    **{"td3_bc": ("nets", "actor"), "spot": ("nets", "actor")},
}
# Their actors are several networks, and compared with the method's own pieces in its tests.
OF_SEVERAL = ("bcq", "swg")


@cache
def dataset() -> Dataset:
    return acpo.load_dataset("builtin/hopper-replay", take=0.05)


def small(name: str) -> Any:
    """The method at a size that compiles and runs in moments, with little to bootstrap from."""
    config = ALGORITHMS[name]
    changes: dict[str, Any] = {
        **{"hidden": (8, 8), "vae_hidden": (8, 8), "batch_size": 16, "gamma": 0.5, "tau": 0.1},
        **{"critics": 3, "samples": 2, "cloning": 0.5, "diffusion_steps": 3, "average": 0.1},
        "critic_share": 0.3,  # its phases end with a chunk
    }
    if hasattr(config, "behavior"):
        model = config.behavior.model
        behavior = BehaviorConfig(model, (8, 8), batch_size=16, max_steps=20, check_every=10)
        changes["behavior"] = behavior
    known = {field.name for field in fields(config)} - ({"tau"} if name == "dtql" else set())
    return replace(config, **{k: v for k, v in changes.items() if k in known})


def train(name: str, steps: int = STEPS, **settings: Any) -> Run:
    defaults = {"log_every": CHUNK, "episodes": 1, "env": "none"}
    return acpo.train(dataset(), small(name), steps=steps, **{**defaults, **settings})


@cache
def trained(name: str) -> Run:
    return train(name, env="Hopper-v4")


@cache
def trained_long(name: str) -> Run:
    return train(name, LONG)


@cache
def prepared(name: str) -> Prepared:
    return prepare(dataset(), small(name))


def arrays(run: Run, seed: int = 0) -> dict[str, np.ndarray]:
    return to_arrays(run.policies[seed].actor)


def assert_same(first: Run, second: Run) -> None:
    assert first.metrics.equals(second.metrics)
    for name, array in arrays(first).items():
        np.testing.assert_array_equal(array, arrays(second)[name], err_msg=name)


pytestmark = pytest.mark.parametrize("name", ALGORITHMS)


def test_an_update_preserves_structure_shapes_and_types(name: str) -> None:
    p = prepared(name)
    spec = Spec(dataset().observation_dim, dataset().action_dim, STEPS)
    state = p.algorithm.init(jax.random.key(0), spec)
    batch = p.layout.unpack(jnp.asarray(p.rows[:16]))
    after, metrics = jax.eval_shape(p.algorithm.update, state, batch, jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for before, now in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert (now.shape, now.dtype) == (before.shape, before.dtype)
    assert metrics
    assert all(value.shape == () for value in metrics.values())


def test_it_improves_its_own_objective_on_the_built_in_data(name: str) -> None:
    run = trained_long(name)
    assert np.isfinite(run.metrics.to_numpy()).all()
    for objective in OBJECTIVES.get(name, ("critic/loss",)):
        course = run.metrics[objective].to_numpy()
        course = course[course != 0]  # what rests is reported as 0
        assert len(course) >= 6
        assert course[-3:].mean() < course[:2].mean() - 0.05 * np.abs(course[:2]).mean()


def td3_gain(p: Prepared, learned: TD3State, untrained: MLP) -> float:
    """By how much the policy's loss fell, where Q is divided by one size for both."""
    batch = p.layout.unpack(jnp.asarray(p.rows[:500]))
    actor, critic = learned.nets

    def terms(actor: MLP) -> tuple[Array, Array]:
        """Q of the policy's actions, and its price: distance, or a penalty times λ."""
        chosen = p.algorithm.act(actor, batch.observations)
        if isinstance(p.algorithm, TD3BC):
            price = jnp.mean((chosen - batch.actions) ** 2) / p.algorithm.alpha
        else:
            log_beta = p.algorithm.behavior_log_prob(batch, chosen, jax.random.key(0))
            price = -p.algorithm.lam * p.algorithm.scale(chosen.shape[-1]) * log_beta.mean()
        return critic(batch.observations, chosen)[0], price

    (q, price), (q_before, price_before) = terms(actor), terms(untrained)
    return float((q - q_before).mean() / jnp.abs(q).mean() + price_before - price)


def with_part(state: Any, place: tuple[str, ...], other: Any) -> Any:
    """A state with another's part at this place."""
    name, *rest = place
    part = getattr(other, name)
    return state._replace(**{name: with_part(getattr(state, name), rest, part) if rest else part})


def test_its_policy_is_better_by_its_own_loss_than_an_untrained_one(name: str) -> None:
    """With the same critics, batches and noise, whatever else the run moved."""
    p = prepared(name)
    spec = Spec(dataset().observation_dim, dataset().action_dim, LONG)
    chunk = program.make_chunk(p.algorithm, p.layout, CHUNK)
    rows = jnp.asarray(p.rows)
    (start, keys), (states, _) = (
        program.init(p.algorithm, spec, jnp.arange(1)) for _ in range(2)
    )  # twice, for a chunk takes its state's memory
    for step in range(0, LONG, CHUNK):
        states, _ = chunk(states, keys, jnp.int32(step), rows)

    if isinstance(p.algorithm, TD3):
        learned, fresh = (jax.tree.map(lambda x: x[0], s) for s in (states, start))
        assert td3_gain(p, learned, fresh.nets.actor) > 0
        return

    def loss(states: Any) -> float:
        copied = jax.tree.map(jnp.copy, states)
        _, metrics = chunk(copied, keys, jnp.int32(LONG), rows)
        return float(metrics["denoiser/loss" if name == "swg" else "policy/loss"].mean())

    untrained = with_part(states, ACTS.get(name, ("trained", "actor")), start)
    assert loss(states) < loss(untrained)


def test_training_moves_every_weight_of_the_policy(name: str) -> None:
    before, after = arrays(trained(name)), arrays(trained_long(name))
    for place in before:
        if ".weights." in place:
            assert not np.allclose(before[place], after[place], atol=1e-4), place


def test_the_same_seed_gives_the_same_bits_and_so_does_a_resumed_run(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        train(name, out=tmp_path / "run", reporter=StopsAt(CHUNK))
    resumed = train(name, out=tmp_path / "run", resume=True)
    assert_same(trained(name), resumed)


def test_seeds_trained_together_differ_and_equal_seeds_trained_alone(name: str) -> None:
    together = train(name, seeds=2)
    for place, array in arrays(trained(name)).items():
        np.testing.assert_array_equal(arrays(together)[place], array, err_msg=place)
        if ".weights." in place:
            assert not np.allclose(arrays(together, 1)[place], array, atol=1e-3), place


def test_a_saved_policy_comes_back_the_same_and_acts_in_the_box(name: str, tmp_path: Path) -> None:
    policy = trained_long(name).policy
    policy.save(tmp_path / "policy.npz")
    loaded = acpo.load_policy(tmp_path / "policy.npz")
    observations = dataset().observations[:50]
    actions = loaded(observations)
    np.testing.assert_array_equal(actions, policy(observations))
    np.testing.assert_allclose(loaded(observations[0]), actions[0], atol=1e-5)
    assert actions.shape == (50, dataset().action_dim)
    assert np.abs(actions).max() <= 1.0
    assert np.ptp(actions, axis=0).min() > 1e-4
    assert loaded.info == policy.info


def test_a_saved_policy_acts_as_the_network_that_learned(name: str) -> None:
    """By its mode: tanh of the mean of what was trained, of normalised observations."""
    if name in OF_SEVERAL:
        pytest.skip(f"{name}'s actor is several networks, and tested beside its own pieces")
    p, run = prepared(name), trained(name)
    assert run.algorithm == p.algorithm
    spec = Spec(dataset().observation_dim, dataset().action_dim, STEPS)
    states, keys = program.init(p.algorithm, spec, jnp.arange(1))
    chunk = program.make_chunk(p.algorithm, p.layout, CHUNK)
    for step in range(0, STEPS, CHUNK):
        states, _ = chunk(states, keys, jnp.int32(step), jnp.asarray(p.rows))
    averaged = isinstance(p.algorithm, ACPO | BC)
    network = states
    for part in ("average",) if averaged else ACTS.get(name, ("trained", "actor")):
        network = getattr(network, part)
    if name in ("iql", "eql"):  # a mean and one deviation for all states
        network = network.mean
    network = jax.tree.map(lambda x: x[0], network)
    observations = dataset().observations[:50]
    outputs = network(jnp.asarray(p.normalizer(observations)))
    expected = np.tanh(outputs)[:, : dataset().action_dim]
    np.testing.assert_allclose(run.policy(observations), expected, atol=1e-5)


def test_seeds_can_run_as_one_batch(name: str) -> None:
    """As they do where there is no CPU to fill: the shapes of a chunk of two."""
    p = prepared(name)
    spec = Spec(dataset().observation_dim, dataset().action_dim, STEPS)
    states, keys = program.init(p.algorithm, spec, jnp.arange(2))
    one = program._Program(p.algorithm, p.layout._replace(network=None), CHUNK, False)
    arguments = (p.layout.network, states, keys, jnp.int32(0), jnp.asarray(p.rows))
    after, metrics = jax.eval_shape(partial(program._chunk, one), *arguments)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, states)
    assert {value.shape[0] for value in metrics.values()} == {2}


def test_it_is_evaluated_in_the_environment(name: str) -> None:
    run = trained(name)
    assert run.evaluations["step"].to_list() == [STEPS]
    assert np.isfinite(run.evaluations["return"].to_numpy()).all()
    assert (run.evaluations["length"].to_numpy() >= 1).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gamma", 1.5),
        ("reward_scale", float("nan")),
        ("learning_rate", float("inf")),
        ("tau", 0.0),
        ("learning_rate", -1.0),
        ("batch_size", 0),
        ("hidden", ()),
    ],
)
def test_bad_settings_are_refused_by_name(name: str, field: str, value: Any) -> None:
    config = ALGORITHMS[name]
    if field not in {f.name for f in fields(config)}:
        pytest.skip(f"{name} has no {field}")
    with pytest.raises(UserError, match=f"--{field.replace('_', '-')} is .* must be"):
        replace(config, **{field: value})


def test_no_number_may_be_infinite_or_none_at_all(name: str) -> None:
    config = ALGORITHMS[name]
    for field in fields(config):
        if not re.search(r"\bfloat\b", str(field.type)):
            continue
        flag = field.name.replace("_", "-")
        for value in (float("nan"), float("inf"), -float("inf")):
            with pytest.raises(UserError, match=f"^--{flag} is .*; it must be a finite number"):
                replace(config, **{field.name: value})


def test_every_setting_is_a_flag_of_the_command(name: str) -> None:
    """A field of the same name as a flag of the data or the loop would be a conflict."""
    found = parse(["--algorithm", name, "--learning-rate", "0.125"]).config
    assert found == replace(ALGORITHMS[name], learning_rate=0.125)


def test_its_settings_are_known_for_every_task(name: str) -> None:
    for task in (None, *TASKS):
        choice = choose(name, "default", task)
        assert type(choice.algorithm) is type(ALGORITHMS[name])
    assert about(name).family
    assert 1990 < about(name).year <= 2026
