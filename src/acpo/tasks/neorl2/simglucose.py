"""NeoRL2's Simglucose: insulin for a patient with type-1 diabetes, a dose every three minutes.

The patient is drawn among fifteen of simglucose's (five adolescents, adults and children), fasting
and under their basal insulin; the hour at which the episode's 24 hours begin is drawn too. All
else is certain: the same six meals a day at the same times, and a sensor without noise. The
observation is the sensed glucose and thirty numbers of the patient; the hour, the meals and the
insulin still under way are hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from acpo.tasks.neorl2.batched import Batched, BatchedEnv
from acpo.tasks.neorl2.glucose_model import FSNC, KE1, KE2, PATIENTS, F, GlucoseModel

MINUTES = 3  # one step: the sensor's interval
_DAY = 24 * 60
_GRAMS_PER_MINUTE = 5.0

# Grams announced at each minute of the day: breakfast, snack, lunch, snack, dinner, snack.
_ANNOUNCED = np.zeros(_DAY)
_ANNOUNCED[[420, 570, 720, 900, 1080, 1290]] = 45.0, 10.0, 70.0, 10.0, 80.0, 10.0


def risk(glucose: np.ndarray) -> np.ndarray:
    """Kovatchev's risk of a glucose in mg/dl: 10 · (1.509 · (ln(G)^1.084 − 5.381))²."""
    return 10.0 * (1.509 * (np.log(glucose) ** 1.084 - 5.381)) ** 2


def reward(glucose: np.ndarray, following: np.ndarray) -> np.ndarray:
    """1 + the fall of the risk in hundreds; −15 at 40 mg/dl or less, 0 at 600 or more."""
    fall = 1.0 + (risk(glucose) - risk(following)) / 100.0
    return np.where(following <= 40.0, -15.0, np.where(following >= 600.0, 0.0, fall))


def infusion(actions: np.ndarray) -> np.ndarray:
    """Insulin in pmol/min for actions in [−1, 1]: 0 to 5 U/min, in the pump's steps of 0.05.

    In single precision, as it was when the official data were recorded: a rate half-way between
    two of the pump's steps must be rounded to the same one.
    """
    step = np.float32(0.05)
    units = (np.asarray(actions, dtype=np.float32) + 1) / 2 * 5
    return np.round(units * 6000 / step) * step


class Simglucose(Batched):
    """Observation: sensed glucose (mg/dl), then the patient's numbers. Action: the pump's rate.

    An episode ends where the mean glucose over a step's three minutes leaves [40, 600] mg/dl. The
    observation lags behind that mean: it is (2·G + G')/3 of the glucose at the step's two ends.
    So the end does not follow from the observation, and the rule that NeoRL2 publishes for it
    (an observation outside [40, 600]) misses 40 of the 141 recorded ones.
    """

    observation_dim, action_dim, horizon = 31, 1, 480
    # Nothing observed is negative or above the sensor's largest reading.
    observation_low, observation_high = 0.0, 600.0

    def _start(self) -> np.ndarray:
        patients = [int(generator.integers(len(PATIENTS))) for generator in self._generators]
        hours = [int(generator.integers(24)) for generator in self._generators]
        return self._place(patients, hours)

    def restore(self, patients: Sequence[int], hours: Sequence[int]) -> np.ndarray:
        """Begin one episode per patient (by place in `PATIENTS`) and hour of the day."""
        self._begin(len(patients))
        return self._place(patients, hours).astype(np.float32)

    def _place(self, patients: Sequence[int], hours: Sequence[int]) -> np.ndarray:
        self._model = GlucoseModel(patients)
        self._description = self._describe()
        self._state = self._model.fasting()
        self._solver_step: np.ndarray | None = None
        self._minute = 60 * np.asarray(hours)
        self._waiting = np.zeros(len(patients))  # g announced and not yet eaten
        self._eating = np.zeros(len(patients))  # g per minute
        self._eaten = np.ones(len(patients))  # mg; of no effect as long as the stomach is empty
        self._reading = self._observed = self._model.sensed(self._state)
        return self._observe()

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        weight = self._model.parameters.BW.astype(np.float32)
        insulin = (infusion(actions[:, 0]) / weight).astype(np.float64)
        glucose = np.zeros(len(actions))
        for _ in range(MINUTES):
            self._eat()
            # Glucose that falls on to zero after an episode's end would cost the solver many steps.
            slope = self._model.slope(1000.0 * self._eating, self._eaten, insulin, self._terminals)
            self._state, self._solver_step = integrate(slope, self._state, self._solver_step)
            self._minute = self._minute + 1
            glucose = glucose + self._model.sensed(self._state) / MINUTES
        # The sensor reads at the step's end; its last reading counts for the minutes before.
        before, held = self._observed, self._reading
        self._reading = np.clip(self._model.sensed(self._state), 10.0, 600.0)
        self._observed = held / MINUTES + held / MINUTES + self._reading / MINUTES
        return (
            self._observe(),
            reward(before, self._observed),
            (glucose < 40.0) | (glucose > 600.0),
        )

    def _eat(self) -> None:
        """Eat for a minute of what was announced; keep the model's D."""
        waiting = self._waiting + _ANNOUNCED[self._minute % _DAY]
        eating = np.minimum(waiting, _GRAMS_PER_MINUTE)
        begins = (eating > 0.0) & (self._eating == 0.0)
        before = np.where(begins, self._state[0] + self._state[1], self._eaten)
        self._waiting, self._eating = waiting - eating, eating
        self._eaten = before + 1000.0 * eating

    def _observe(self) -> np.ndarray:
        return np.concatenate([self._observed[:, None], self._description], axis=1)

    def _describe(self) -> np.ndarray:
        """The patients' numbers in NeoRL2's order, [N, 30]."""
        p = self._model.parameters
        fsnc, f, ke1, ke2 = (np.full_like(p.BW, number) for number in (FSNC, F, KE1, KE2))
        glucose = [p.BW, fsnc, p.Ib, p.Km0, p.Vi, p.Vm0, p.Vmx, p.b, p.d, f, p.k1, p.k2]
        insulin = [p.ka1, p.ka2, p.kabs, p.kd, ke1, ke2, p.ki, p.kmax, p.kp1, p.kp2, p.kp3]
        rest = [p.ksc, p.m1, p.m2, p.m30, p.m4, p.p2u, p.u2ss]
        return np.stack([*glucose, *insulin, *rest], axis=1)


class SimglucoseEnv(BatchedEnv):
    """One patient's day as a Gymnasium environment."""

    def __init__(self) -> None:
        super().__init__(Simglucose())


# The tableau of Dormand and Prince (1980): stages 2 to 6; the fifth-order result, which is also
# stage 7; and its difference from the fourth-order one.
*_STAGES, _DIFFERENCE = (
    np.array(row)[:, None, None]
    for row in (
        [1 / 5],
        [3 / 40, 9 / 40],
        [44 / 45, -56 / 15, 32 / 9],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
        [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
        [71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40],
    )
)
_RELATIVE, _ABSOLUTE = 1e-6, 1e-12  # tolerances

Slope = Callable[[np.ndarray], np.ndarray]


def integrate(
    slope: Slope, state: np.ndarray, step: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Solve state' = slope(state) over one minute for states [k, N]; also the next step [N].

    DOPRI5 of Hairer, Nørsett and Wanner (Solving Ordinary Differential Equations I, II.4–5) with
    its control of the step, for each episode by itself. Its tolerances are loose enough to show
    in single precision, so the method is the one of the official data to the letter: SciPy's
    former Fortran version began a minute with the step that was to follow in the last one. (Its
    present one searches for a first step anew, and differs by up to 1e-3 mg/dl.)
    """
    slopes = np.empty((7, *state.shape))
    slopes[0] = slope(state)
    if step is None:
        step = _first_step(slope, state, slopes[0])
    time = np.zeros_like(step)
    error_before = np.full_like(step, 1e-4)
    rejected = np.zeros(step.shape, dtype=bool)
    while time.min() < 1.0:
        last = time + 1.01 * step > 1.0
        # An episode that is at the end takes steps of length 0 there, which change nothing.
        taken = np.where(last, 1.0 - time, step)
        for stage, weights in enumerate(_STAGES, start=1):
            new = state + taken * np.add.reduce(weights * slopes[:stage])
            slopes[stage] = slope(new)
        difference = taken * np.add.reduce(_DIFFERENCE * slopes)
        allowed = _ABSOLUTE + _RELATIVE * np.maximum(np.abs(state), np.abs(new))
        error = np.sqrt(_squares(difference / allowed) / len(state))
        accepted = error <= 1.0

        power = error**0.17
        longer = taken / np.clip(power / error_before**0.04 / 0.9, 0.1, 5.0)
        longer = np.where(rejected & ~last, np.minimum(longer, taken), longer)
        shorter = taken / np.clip(power / 0.9, 1.0, 5.0)
        step = np.where(time < 1.0, np.where(accepted, longer, shorter), step)
        error_before = np.where(accepted, np.maximum(error, 1e-4), error_before)
        rejected = ~accepted

        state = np.where(accepted, new, state)
        slopes[0] = np.where(accepted, slopes[6], slopes[0])
        time = np.where(accepted, np.where(last, 1.0, time + taken), time)
    return state, step


def _first_step(slope: Slope, state: np.ndarray, start: np.ndarray) -> np.ndarray:
    """A first step [N], from the sizes of the state and of its first two derivatives."""
    allowed = _ABSOLUTE + _RELATIVE * np.abs(state)
    size, speed = _squares(state / allowed), np.maximum(_squares(start / allowed), 1e-10)
    trial = np.minimum(0.01 * np.sqrt(size / speed), 1.0)
    bend = _squares((slope(state + trial * start) - start) / allowed)
    fastest = np.maximum(np.sqrt(bend) / trial, np.sqrt(speed))
    return np.minimum(np.minimum(100.0 * trial, (0.01 / fastest) ** 0.2), 1.0)


def _squares(values: np.ndarray) -> np.ndarray:
    """Σ values² over the states. A plain sum would add in another order where N is 1."""
    return np.add.accumulate(values * values)[-1]
