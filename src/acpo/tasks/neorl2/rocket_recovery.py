"""NeoRL2's RocketRecovery: land a rocket upright on flat ground, in wind.

The published task is Gymnasium's lunar lander in Box2D with wind and level ground. It is written
here in closed form. A point (x, y) is the complex number x + iy, and a × b = Im(a*·b).

Three bodies share one hinge: the hull (mass m_h, inertia I_h) and two legs (m, I). Motors hold the
legs' turning rates u against the hull (0.3 inwards until the legs are in, then 0), so a step of
Δt = 0.02 first adds forces and engine impulses to the velocities, then finds the hull's velocity v
and rate ω from the momentum P = Σ m·v and the spin L = Σ (I·ω + m·d × v), which forces in the
hinge leave alone: with d from the hull's centre to a leg's, b from the leg's centre to the hinge,
s = −i·u·b, sums over legs, D = Σd, S = Σs and M = m_h + 2m,

    ω = (L − Σ(I·u + m·d × s) − m/M·D × (P − m·S)) / (I_h + Σ(I + m·|d|²) − m²/M·|D|²)
    v = (P − m·(S + i·ω·D)) / M,    a leg's v + i·ω·d + s,

and then moves the centre of all mass by Δt·P/M and turns hull and legs. Box2D approaches the same
by iteration: recorded steps are met to 5·10⁻⁵ in the first 25, while the legs move in, and to
2·10⁻⁵ later.

Action: main engine (off below 0, else half to full) and side engines (off within ±0.5). Each step
scatters their thrust at random. Observation: x, y, vx, vy, angle, rate, each in the task's units,
and the wind that blew. Wind is a force tanh(sin 0.02k + sin 0.01πk)·10, where k grows by one per
step from a random start. With φ = −100·(|(x, y)| + |(vx, vy)| + |angle|), the reward is
φ' − φ − 0.3·main − 0.03·side. The episode ends when |y| ≤ 0.05: +100 if |angle| < 0.3, |vx| < 0.5
and |vy| < 2, otherwise −100.

A leg that touches the ground before that (it takes a tilt above 0.4 at y < 0.08) has no closed
form: from there on `rocket_landing` moves the three bodies of that episode, as Box2D does.
"""

from __future__ import annotations

import numpy as np

from acpo.tasks.neorl2.batched import Batched, BatchedEnv
from acpo.tasks.neorl2.rocket_bodies import MOTOR, PIXEL, STEP, STOP, Body, Hinge
from acpo.tasks.neorl2.rocket_landing import CORNERS, SKIN, Rocket

GRAVITY = 10.0
# Half of the view: positions are seen relative to it, velocities times it and the time step.
VIEW = (10.0, 20.0 / 3.0)
START = 10.0 + 40.0j / 3.0
GROUND = 10.0 / 3.0
LANDED = 10.0 + (GROUND + 18 * PIXEL) * 1j
PUSH = 500.0
WIND = 10.0
WIND_PHASES = (-9999, 9999)
MAIN_POWER, SIDE_POWER = 13.0, 0.6
MAIN_OFFSET, SIDE_OFFSET = 4 * PIXEL, 12 * PIXEL
# The motors turn a leg from where the start leaves it to its stop.
OPEN, MOTOR_STEPS = 0.492, 24


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (np.conj(a) * b).imag


def _rigid(corners: list[complex], density: float) -> tuple[float, complex, float]:
    """Mass, centre and moment of inertia about the centre of a polygon, corners in pixels."""
    here = np.array(corners) * PIXEL
    there = np.roll(here, -1)
    doubled = _cross(here, there)
    mass = float(density * doubled.sum() / 2)
    centre = complex(((here + there) * doubled).sum() / doubled.sum() / 3)
    squares = np.abs(here) ** 2 + np.abs(there) ** 2 + (np.conj(here) * there).real
    return mass, centre, float(density * (doubled * squares).sum() / 12 - mass * abs(centre) ** 2)


HULL, HULL_CENTRE, HULL_INERTIA = _rigid([-17, -17 - 10j, 17 - 10j, 17, 14 + 17j, -14 + 17j], 5.0)
LEG, _, LEG_INERTIA = _rigid([-2 - 8j, 2 - 8j, 2 + 8j, -2 + 8j], 1.0)
MASS = HULL + 2 * LEG
SIDES = np.array([-1.0, 1.0])
HINGES = (1, 0)  # the order in which Box2D takes them
HINGE_OF_LEG = (20 * SIDES + 18j) * PIXEL


class RocketRecovery(Batched):
    """N episodes: position, angle, velocity and rate of the hull [N] and of the legs [N, 2].

    Besides: the wind's phase [N] and the scatter of every step's thrust [N, steps, 2].
    """

    observation_dim, action_dim, horizon = 7, 2, 500
    _landing: dict[int, Rocket]

    def _start(self) -> np.ndarray:
        pushes, scatter, phases = [], [], []
        for generator in self._generators:
            # The published environment's draws in its order (it draws a terrain, then levels it):
            # a seed gives the same episode but for the wind, which it never seeds.
            generator.uniform(size=12)
            pushes.append(generator.uniform(-PUSH, PUSH, 2))
            scatter.append(generator.uniform(-PIXEL, PIXEL, (self.horizon + 1, 2)))
            phases.append(generator.integers(*WIND_PHASES))
        return self.launch(np.array(pushes), np.array(phases), np.array(scatter)[:, 1:])

    def launch(self, pushes: np.ndarray, phases: np.ndarray, scatter: np.ndarray) -> np.ndarray:
        """Begin from given draws: a force on the hull [N, 2] during one step without thrust.

        The legs start off their hinge. As in Box2D, this step puts them there only after the
        velocities are found, joint by joint.
        """
        self._begin(len(pushes))
        self._phases, self._scatter, self._landing = phases, scatter, {}
        still = np.zeros(len(pushes))
        self._angle, self._rate = still, still
        self._centre = still + START + HULL_CENTRE
        self._velocity = STEP / HULL * (pushes[:, 0] + 1j * pushes[:, 1])
        self._folds = still[:, None] + 0.05 * SIDES
        self._leg_velocity = np.zeros((len(pushes), 2), dtype=complex)
        self._leg_rate = np.zeros((len(pushes), 2))
        self._reach()
        self._weather()
        self._couple(np.zeros((len(pushes), 2)))
        self._join(START - SIDES * 20 * PIXEL + STEP * self._leg_velocity)
        self._observations = self._observe()
        return self._observations.copy()

    def restore(
        self, observations: np.ndarray, ages: np.ndarray, phases: np.ndarray, scatter: np.ndarray
    ) -> None:
        """Continue from observations [N, 7] made `ages` [N] ≥ 1 steps after the start.

        The age tells where the legs are: within 0.002, as the first push moves them a little.
        """
        self._begin(len(observations))
        self._observations = observations.astype(np.float32)
        self._phases, self._scatter, self._landing = phases, scatter, {}
        x, y, vx, vy, angle, rate, _ = observations.astype(np.float64).T
        self._velocity = (vx / VIEW[0] + 1j * vy / VIEW[1]) / STEP
        self._rate = rate / (20 * STEP)
        turning = MOTOR * SIDES * (ages <= MOTOR_STEPS)[:, None]
        self._folds = -SIDES * (OPEN - STEP * MOTOR * np.minimum(ages, MOTOR_STEPS))[:, None]
        # The legs' velocities belong to the directions before the last turn.
        self._folds, self._angle = self._folds - STEP * turning, angle - STEP * self._rate
        self._reach()
        self._set_legs(turning)
        self._folds, self._angle = self._folds + STEP * turning, angle
        self._reach()
        self._centre = LANDED + x * VIEW[0] + 1j * y * VIEW[1] - self._hinge

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        throttle, steering = actions.T
        main = np.where(throttle > 0, (throttle + 1) / 2, 0)
        side = np.where(np.abs(steering) > 0.5, np.abs(steering), 0)
        self._thrust(main, np.sign(steering) * side, *self._scatter[:, self._clock - 1].T)
        self._weather()
        velocities, rates = self._velocity, self._rate
        inside = -SIDES * self._folds <= STOP
        self._couple(np.where(inside, 0.0, MOTOR * SIDES))
        places, angles = self._legs()
        self._move()
        self._land(velocities, rates)
        self._touch(places, angles)
        before, now = self._observations, self._observe()
        rewards = _potential(now) - _potential(before) - main * 0.3 - side * 0.03
        _, y, vx, vy, angle, *_ = np.abs(now.T)
        landed = y <= 0.05
        safe = (angle < 0.3) & (vx < 0.5) & (vy < 2)
        return now, np.where(landed, np.where(safe, 100, -100), rewards), landed

    def _thrust(
        self, main: np.ndarray, side: np.ndarray, up: np.ndarray, across: np.ndarray
    ) -> None:
        """Engine impulses on the hull, scattered by `up` and `across`; `side` has its sign."""
        turn = np.exp(1j * self._angle)
        pushed = MAIN_POWER * main * turn * (across + 1j * (MAIN_OFFSET + 2 * up))
        # The published arm is no turned vector: the engine's place on the hull varies with angle.
        arm = (-17 * turn.imag + 14j * turn.real) * PIXEL
        aimed = 3 * across + np.sign(side) * SIDE_OFFSET
        steered = SIDE_POWER * np.abs(side) * turn * (aimed + 1j * up)
        self._velocity = self._velocity + (pushed + steered) / HULL
        torque = _cross(self._hinge, pushed) + _cross(self._hinge + arm, steered)
        self._rate = self._rate + torque / HULL_INERTIA

    def _weather(self) -> None:
        """Wind on the hull, and gravity on all."""
        phase = self._phases
        self._wind = WIND * np.tanh(np.sin(0.02 * phase) + np.sin(np.pi * 0.01 * phase))
        self._phases = phase + 1
        self._velocity = self._velocity + STEP * (self._wind / HULL - 1j * GRAVITY)
        self._leg_velocity = self._leg_velocity - 1j * STEP * GRAVITY

    def _reach(self) -> None:
        """Hull's centre to hinge [N], legs' centres to hinge [N, 2] and hull's centre to legs'."""
        self._hinge = -np.exp(1j * self._angle) * HULL_CENTRE
        self._hips = np.exp(1j * (self._angle[:, None] + self._folds)) * HINGE_OF_LEG
        self._arms = self._hinge[:, None] - self._hips

    def _couple(self, turning: np.ndarray) -> None:
        """Velocities of three bodies that move as one, but for the legs' turning [N, 2]."""
        arms, slip = self._arms, -1j * turning * self._hips
        arm_sum, slip_sum = arms.sum(axis=1), slip.sum(axis=1)
        self._momentum = HULL * self._velocity + LEG * self._leg_velocity.sum(axis=1)
        own = LEG_INERTIA * (self._leg_rate - turning)
        spin = HULL_INERTIA * self._rate
        spin = spin + (own + LEG * _cross(arms, self._leg_velocity - slip)).sum(axis=1)
        spin = spin - LEG / MASS * _cross(arm_sum, self._momentum - LEG * slip_sum)
        inertia = HULL_INERTIA + 2 * LEG_INERTIA + LEG * (np.abs(arms) ** 2).sum(axis=1)
        self._rate = spin / (inertia - LEG**2 / MASS * np.abs(arm_sum) ** 2)
        drift = LEG * (slip_sum + 1j * self._rate * arm_sum)
        self._velocity = (self._momentum - drift) / MASS
        self._set_legs(turning)

    def _set_legs(self, turning: np.ndarray) -> None:
        """Legs follow the hull, and turn about the hinge."""
        spin = 1j * self._rate[:, None] * self._arms
        self._leg_velocity = self._velocity[:, None] + spin - 1j * turning * self._hips
        self._leg_rate = self._rate[:, None] + turning
        self._turning = turning

    def _move(self) -> None:
        """The centre of all mass moves straight; hull and legs turn about it."""
        whole = self._centre + LEG / MASS * self._arms.sum(axis=1) + STEP / MASS * self._momentum
        self._angle = self._angle + STEP * self._rate
        self._folds = self._folds + STEP * self._turning
        self._reach()
        self._centre = whole - LEG / MASS * self._arms.sum(axis=1)

    def _legs(self) -> tuple[np.ndarray, np.ndarray]:
        """Places of the legs' centres and their angles [N, 2]."""
        return self._centre[:, None] + self._arms, self._angle[:, None] + self._folds

    def _bodies(self, e: int, places: np.ndarray, angles: np.ndarray) -> Rocket:
        """One episode for the iterative solver, with its legs at these places and angles."""

        def body(mass: float, inertia: float, *state: np.ndarray) -> Body:
            return Body(mass, inertia, *(number.item() for number in state))

        state = self._centre[e], self._angle[e], self._velocity[e], self._rate[e]
        hull, hinges = body(HULL, HULL_INERTIA, *state), []
        for j in HINGES:
            moving = self._leg_velocity[e, j], self._leg_rate[e, j]
            leg = body(LEG, LEG_INERTIA, places[e, j], angles[e, j], *moving)
            arms = -HULL_CENTRE, HINGE_OF_LEG[j].item()
            hinges.append(Hinge(hull, leg, SIDES[j].item(), arms))
        return Rocket(hull, hinges, GROUND, 2 * VIEW[0])

    def _land(self, velocities: np.ndarray, rates: np.ndarray) -> None:
        """Where a leg has touched the ground, the step from these velocities is another."""
        for e, rocket in self._landing.items():
            if not self._terminals[e]:
                hull = rocket.hull
                rocket.step(velocities[e].item(), rates[e].item(), GRAVITY)
                self._centre[e], self._angle[e] = hull.place, hull.angle
                self._velocity[e], self._rate[e] = hull.velocity, hull.rate
        if self._landing:
            self._reach()

    def _touch(self, places: np.ndarray, angles: np.ndarray) -> None:
        """Find episodes in which a leg, from these places and angles, came to the ground."""
        here, turned = self._legs()
        corners = here[..., None] + np.exp(1j * turned)[..., None] * np.array(CORNERS)
        low = corners.imag.min(axis=(1, 2)) <= GROUND + SKIN
        for e in np.flatnonzero(low & ~self._terminals).tolist():
            if e not in self._landing:
                self._landing[e] = self._bodies(e, here, turned)
                self._landing[e].meet([(places[e, j].item(), angles[e, j].item()) for j in HINGES])

    def _join(self, legs: np.ndarray) -> None:
        """Put the legs, found at these places [N, 2], on the hinge: Box2D's corrections."""
        self._centre = self._centre + STEP * self._velocity
        self._angle = self._angle + STEP * self._rate
        angles = self._angle[:, None] + self._folds
        for e in range(len(legs)):
            rocket = self._bodies(e, legs, angles)
            rocket.settle()
            self._centre[e], self._angle[e] = rocket.hull.place, rocket.hull.angle
            for j, hinge in zip(HINGES, rocket.hinges, strict=True):
                self._folds[e, j] = hinge.leg.angle - rocket.hull.angle
        self._reach()

    def _observe(self) -> np.ndarray:
        place = self._centre + self._hinge - LANDED
        seen = (
            place.real / VIEW[0],
            place.imag / VIEW[1],
            self._velocity.real * VIEW[0] * STEP,
            self._velocity.imag * VIEW[1] * STEP,
            self._angle,
            self._rate * 20 * STEP,
            self._wind,
        )
        return np.stack(seen, axis=1).astype(np.float32)


def _potential(observations: np.ndarray) -> np.ndarray:
    x, y, vx, vy, angle, *_ = observations.T
    return -100 * (np.sqrt(x * x + y * y) + np.sqrt(vx * vx + vy * vy) + np.abs(angle))


class RocketRecoveryEnv(BatchedEnv):
    """RocketRecovery as a Gymnasium environment."""

    def __init__(self) -> None:
        super().__init__(RocketRecovery())
