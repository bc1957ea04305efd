from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from acpo import networks
from acpo.networks import MLP, Gaussian, Head, TwinQ, of_members


def forward(net: MLP, x: np.ndarray, layer_norm: bool) -> np.ndarray:
    """The network in float64 numpy, one row and one layer at a time."""
    weights = [np.asarray(w, np.float64) for w in net.weights]
    biases = [np.asarray(b, np.float64) for b in net.biases]
    rows = []
    for row in x.astype(np.float64):
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            row = weight.T @ row + bias
            if layer_norm:
                centred = row - row.mean()
                row = centred / np.sqrt((centred**2).mean() + 1e-5)
            row = np.where(row > 0, row, 0.0)
        rows.append(weights[-1].T @ row + biases[-1])
    return np.array(rows)


def normal_log_density(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    density = np.exp(-((x - mean) ** 2) / (2 * std**2)) / np.sqrt(2 * np.pi * std**2)
    return np.log(density).sum(axis=-1)


def squashed_log_density(a: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Change of variables: log N(atanh a) + Σ log |d atanh(a)/da|, with slope 1/(1 − a²)."""
    return normal_log_density(np.arctanh(a), mean, std) - np.log(1.0 - a**2).sum(axis=-1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def gaussian(rng: np.random.Generator) -> Gaussian:
    """Thirty states, two actions."""
    mean = rng.uniform(-0.6, 0.6, size=(30, 2)).astype(np.float32)
    log_std = rng.uniform(-1.5, 0.0, size=(30, 2)).astype(np.float32)
    return Gaussian(jnp.asarray(mean), jnp.asarray(log_std))


# --- networks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layer_norm", [False, True])
def test_mlp_computes_the_layers_it_names(rng: np.random.Generator, layer_norm: bool) -> None:
    net = MLP.create(jax.random.key(1), (3, 8, 6, 2), layer_norm)
    x = rng.normal(scale=3.0, size=(7, 3)).astype(np.float32)
    assert net(x).shape == (7, 2)
    np.testing.assert_allclose(net(x), forward(net, x, layer_norm), rtol=1e-4, atol=1e-5)


def test_layer_norm_changes_the_function(rng: np.random.Generator) -> None:
    x = rng.normal(size=(7, 3)).astype(np.float32)
    plain, normed = (MLP.create(jax.random.key(1), (3, 8, 6, 2), flag) for flag in (False, True))
    np.testing.assert_array_equal(plain.weights[0], normed.weights[0])
    assert not np.allclose(plain(x), normed(x), atol=1e-2)


def test_initial_weights_fill_the_interval_of_one_over_root_fan_in() -> None:
    net = MLP.create(jax.random.key(0), (100, 200, 3))
    for parameters in (net.weights[0], net.biases[0]):
        extreme = float(jnp.abs(parameters).max())
        assert 0.09 < extreme <= 0.1
        assert abs(float(parameters.mean())) < 0.02


def test_initial_weights_depend_on_the_key_alone() -> None:
    nets = [MLP.create(jax.random.key(seed), (3, 8, 6, 2)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(nets[0].weights[0], nets[1].weights[0])
    assert not np.array_equal(nets[0].weights[0], nets[2].weights[0])


def test_twin_q_stacks_first_and_second_critic_of_observation_then_action(
    rng: np.random.Generator,
) -> None:
    critic = TwinQ.create(jax.random.key(0), (5, 8, 6, 1))
    observation = rng.normal(size=(6, 3)).astype(np.float32)
    action = rng.normal(size=(6, 2)).astype(np.float32)
    found = critic(observation, action)
    x = np.concatenate([observation, action], axis=1)
    assert found.shape == (2, 6)
    np.testing.assert_allclose(found[0], forward(critic.q1, x, False)[:, 0], atol=1e-5)
    np.testing.assert_allclose(found[1], forward(critic.q2, x, False)[:, 0], atol=1e-5)
    assert not np.allclose(found[0], found[1], atol=1e-3)


@pytest.mark.parametrize("group", [1, 3, 7, 10])
def test_members_of_an_ensemble_do_what_they_do_alone(
    group: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, in groups of which the last is smaller, in one group, and with room left."""
    monkeypatch.setattr(networks, "GROUP", group)
    nets = [MLP.create(jax.random.key(k), (4, 5, 1)) for k in range(7)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *nets)
    x, factors = jnp.float32(rng.normal(size=(6, 4))), jnp.arange(7.0)

    def total(stacked: MLP) -> jax.Array:
        values = of_members(lambda net, k: k * net(x)[:, 0], stacked, factors)
        assert values.shape == (7, 6)
        return values.sum()

    value, gradient = jax.value_and_grad(total)(stacked)
    alone = [k * forward(net, np.asarray(x), False).sum() for k, net in enumerate(nets)]
    np.testing.assert_allclose(value, sum(alone), rtol=1e-5)
    for k, net in enumerate(nets):
        expected = jax.grad(lambda net, k=k: k * net(x).sum())(net)
        member = jax.tree.map(lambda leaf, k=k: leaf[k], gradient)
        for found, wanted in zip(jax.tree.leaves(member), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


# --- heads --------------------------------------------------------------------------------------


def test_plain_head_squeezes_the_mean_and_squashed_head_does_not(rng: np.random.Generator) -> None:
    output = rng.normal(size=(9, 4)).astype(np.float32)
    np.testing.assert_allclose(
        Head("plain").parameters(output).mean, np.tanh(output[:, :2]), rtol=1e-5
    )
    np.testing.assert_array_equal(Head("squashed").parameters(output).mean, output[:, :2])


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_log_std_stays_within_its_bounds(kind: str) -> None:
    head = Head(kind, log_std_min=-3.0, log_std_max=1.0)
    output = np.array([[0.0, -100.0], [0.0, -2.0], [0.0, 100.0]], np.float32)
    np.testing.assert_array_equal(head.parameters(output).log_std[:, 0], [-3.0, -2.0, 1.0])


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_mode_is_tanh_of_the_networks_first_half(kind: str, rng: np.random.Generator) -> None:
    head = Head(kind)
    output = rng.normal(size=(9, 4)).astype(np.float32)
    np.testing.assert_allclose(
        head.mode(head.parameters(output)), np.tanh(output[:, :2]), rtol=1e-5
    )


def test_plain_log_prob_is_the_normal_density(gaussian: Gaussian, rng: np.random.Generator) -> None:
    action = rng.uniform(-1, 1, size=(30, 2)).astype(np.float32)
    mean, std = np.asarray(gaussian.mean), np.exp(gaussian.log_std)
    np.testing.assert_allclose(
        Head("plain").log_prob(gaussian, action),
        normal_log_density(action, mean, std),
        rtol=1e-4,
        atol=1e-4,
    )


def test_squashed_log_prob_is_the_change_of_variables(
    gaussian: Gaussian, rng: np.random.Generator
) -> None:
    action = rng.uniform(-0.97, 0.97, size=(30, 2)).astype(np.float32)
    mean, std = np.asarray(gaussian.mean), np.exp(gaussian.log_std)
    np.testing.assert_allclose(
        Head("squashed").log_prob(gaussian, action),
        squashed_log_density(action.astype(np.float64), mean, std),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, -1.0), (0.7, -0.5), (-1.2, -2.0)])
def test_squashed_density_integrates_to_one(mean: float, log_std: float) -> None:
    edges = np.linspace(-1.0, 1.0, 20_001)
    middle = ((edges[1:] + edges[:-1]) / 2)[:, None].astype(np.float32)
    p = Gaussian(jnp.full((len(middle), 1), mean), jnp.full((len(middle), 1), log_std))
    mass = np.exp(np.asarray(Head("squashed").log_prob(p, middle), np.float64)).sum() * 1e-4
    assert mass == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_a_sample_comes_with_its_own_log_prob(
    kind: str, gaussian: Gaussian, rng: np.random.Generator
) -> None:
    head = Head(kind)
    noise = rng.normal(scale=0.5, size=(30, 2)).astype(np.float32)
    action, log_prob = head.sample_with_log_prob(gaussian, noise)
    np.testing.assert_array_equal(action, head.sample(gaussian, noise))
    assert float(jnp.abs(action).max()) <= 1.0
    np.testing.assert_allclose(log_prob, head.log_prob(gaussian, action), rtol=1e-3, atol=1e-3)


def test_samples_are_mean_plus_scaled_noise_then_clipped_or_squashed() -> None:
    p = Gaussian(jnp.array([[0.5, 0.5]]), jnp.log(jnp.array([[0.1, 2.0]])))
    noise = jnp.array([[-2.0, 1.0]])
    np.testing.assert_allclose(Head("plain").sample(p, noise), [[0.3, 1.0]], rtol=1e-5)
    squashed = Head("squashed").sample(p, noise)
    np.testing.assert_allclose(squashed, np.tanh([[0.3, 2.5]]), rtol=1e-5)


def test_plain_log_prob_of_a_sample_is_taken_at_the_clipped_action() -> None:
    p = Gaussian(jnp.array([[0.5]]), jnp.array([[0.0]]))
    action, log_prob = Head("plain").sample_with_log_prob(p, jnp.array([[3.0]]))
    assert float(action[0, 0]) == 1.0
    assert float(log_prob[0]) == pytest.approx(-0.5 * 0.5**2 - 0.5 * np.log(2 * np.pi))


def test_squashed_log_prob_of_a_sample_is_exact_where_the_action_rounds_to_the_bound() -> None:
    u = np.array([[-14.0], [11.0], [30.0]])
    p = Gaussian(jnp.zeros((3, 1)), jnp.full((3, 1), 2.0))
    action, log_prob = Head("squashed").sample_with_log_prob(p, jnp.asarray(u / np.exp(2.0)))
    np.testing.assert_allclose(np.abs(action), 1.0, rtol=1e-6)
    log_cosh = np.logaddexp(u, -u) - np.log(2.0)
    exact = normal_log_density(u, np.zeros((3, 1)), np.full((3, 1), np.exp(2.0)))
    np.testing.assert_allclose(log_prob, exact + 2.0 * log_cosh[:, 0], rtol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_log_prob_and_its_gradient_are_finite_at_the_bounds(kind: str) -> None:
    head = Head(kind)
    actions = jnp.array([[1.0], [-1.0], [1.0], [-1.0]])
    output = jnp.array([[0.0, 0.0], [0.0, -5.0], [-3.0, -100.0], [5.0, 100.0]])

    def total(output: jax.Array) -> jax.Array:
        return head.log_prob(head.parameters(output), actions).sum()

    assert np.isfinite(head.log_prob(head.parameters(output), actions)).all()
    gradient = np.asarray(jax.grad(total)(output))
    assert np.isfinite(gradient).all()
    assert np.abs(gradient[0]).max() > 0


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_the_typical_log_prob_is_the_mean_of_many_samples(
    kind: str, rng: np.random.Generator
) -> None:
    p = Gaussian(jnp.array([[0.1, -0.8], [0.0, 1.2]]), jnp.array([[-1.0, -0.3], [-3.0, 0.4]]))
    noise = rng.normal(size=(200_000, 2, 2))
    u = np.asarray(p.mean) + np.exp(np.asarray(p.log_std)) * noise
    log_prob = -0.5 * noise**2 - np.asarray(p.log_std) - 0.5 * np.log(2 * np.pi)
    action = np.array([[0.5, -0.9], [0.1, 0.99]])
    if kind == "squashed":  # u's density, and the Jacobian at the action
        log_prob -= np.log(1 - action**2)
    else:  # a sample beyond its bound is one on it, and so nearer to the mean
        clipped = (np.clip(u, -1, 1) - np.asarray(p.mean)) / np.exp(np.asarray(p.log_std))
        log_prob += 0.5 * noise**2 - 0.5 * clipped**2
    expected = log_prob.sum(axis=-1)
    error = expected.std(axis=0) / np.sqrt(len(noise))
    found = np.asarray(Head(kind).typical_log_prob(p, jnp.asarray(action)))
    # The clip is a kink, which a rule for polynomials sees less exactly.
    allowed = 5 * error + (0.05 if kind == "plain" else 0.005)
    assert (np.abs(found - expected.mean(axis=0)) < allowed).all()
    far_from_bounds = Gaussian(jnp.zeros((1, 2)), jnp.full((1, 2), -3.0))
    entropy = 2 * (-3.0 + 0.5 * np.log(2 * np.pi * np.e))
    found = Head(kind).typical_log_prob(far_from_bounds, jnp.zeros((1, 2)))
    assert float(found[0]) == pytest.approx(-entropy)


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_the_mass_around_an_action_is_a_difference_of_two_normal_tails(kind: str) -> None:
    mean, std = np.array([0.3, -0.6]), np.array([0.2, 1.5])
    p = Gaussian(jnp.asarray(mean), jnp.log(jnp.asarray(std)))
    for action in ([0.3, -0.6], [0.9, 0.2], [-0.9, 0.9], [1.0, -1.0], [0.995, -0.992]):
        low, high = np.array(action) - 0.01, np.array(action) + 0.01
        if kind == "squashed":
            low, high = (np.arctanh(np.clip(x, -1 + 1e-15, 1 - 1e-15)) for x in (low, high))
        # Samples beyond a bound end on it.
        low = np.where(np.array(action) - 0.01 <= -1, -np.inf, low)
        high = np.where(np.array(action) + 0.01 >= 1, np.inf, high)
        # Of two ways to write a difference of tails, one does not cancel.
        left = norm.cdf(high, mean, std) - norm.cdf(low, mean, std)
        right = norm.sf(low, mean, std) - norm.sf(high, mean, std)
        expected = np.log(np.where(low > mean, right, left)).sum()
        found = float(Head(kind).log_mass(p, jnp.asarray(action), 0.01))
        assert found == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_the_masses_of_boxes_that_fill_the_range_sum_to_one(kind: str) -> None:
    centres = jnp.linspace(-0.9, 0.9, 10)[:, None]
    p = Gaussian(jnp.full((10, 1), 0.7), jnp.full((10, 1), -0.5))
    assert float(jnp.exp(Head(kind).log_mass(p, centres, 0.1)).sum()) == pytest.approx(1, rel=1e-4)


def test_the_mass_is_finite_however_far_away_and_at_most_one_on_the_bounds() -> None:
    for kind in ("plain", "squashed"):
        p = Gaussian(jnp.array([[1.0], [-1.0]]), jnp.full((2, 1), -5.0))
        far, near = Head(kind).log_mass(p, jnp.ones((2, 1)), 0.01)[::-1]
        assert np.isfinite(far)
        assert far < -20
        assert near <= 0


def test_an_unsettled_head_is_refused() -> None:
    with pytest.raises(ValueError, match="auto"):
        Head.settled("auto", -5.0, 2.0)
    assert Head.settled("squashed", -4.0, 1.0) == Head("squashed", -4.0, 1.0)
