"""A rocket's hull and legs as rigid bodies, and the hinges that join them.

Points are complex numbers. A constraint is met by impulses: each sweep applies the one that would
meet it if it were alone, as Box2D does; `rocket_landing` says why.
"""

from __future__ import annotations

import math
from cmath import rect
from dataclasses import dataclass

PIXEL, STEP = 1 / 30, 1 / 50
MOTOR, MOTOR_IMPULSE = 0.3, 40 * STEP
STOP, OUTER_STOP = 0.35, 0.85
# What is off by less than the slack is left so, and an angle is corrected by so much at most.
SLACK, ANGLE_SLACK, MOST_ANGLE = 0.005, math.pi / 90, math.pi * 8 / 180


def cross(a: complex, b: complex) -> float:
    """a × b."""
    return a.real * b.imag - a.imag * b.real


def clip(value: float, low: float, high: float) -> float:
    """The nearest number between low and high."""
    return min(max(value, low), high)


@dataclass
class Body:
    """A rigid body; place and velocity are those of its centre."""

    mass: float
    inertia: float
    place: complex
    angle: float
    velocity: complex
    rate: float

    def at(self, arm: complex) -> complex:
        """Velocity of the point that is `arm` from the centre."""
        return self.velocity + 1j * self.rate * arm

    def ease(self, arm: complex, direction: complex) -> float:
        """How much faster a unit impulse in this direction makes that point."""
        return 1 / self.mass + cross(arm, direction) ** 2 / self.inertia

    def push(self, impulse: complex, twist: float) -> None:
        """Change velocities."""
        self.velocity += impulse / self.mass
        self.rate += twist / self.inertia

    def shift(self, impulse: complex, twist: float) -> None:
        """Change places, likewise."""
        self.place += impulse / self.mass
        self.angle += twist / self.inertia


class Hinge:
    """Joins a leg to the hull, at these arms from their centres when their angles are 0.

    It begins with the leg at its stop, against which the motor pushes as hard as it can.
    """

    def __init__(self, hull: Body, leg: Body, side: float, arms: tuple[complex, complex]) -> None:
        self.hull, self.leg, self.side, self.arms = hull, leg, side, arms
        self.stiffness = 1 / (1 / hull.inertia + 1 / leg.inertia)
        self.impulse, self.motor, self.stop = 0j, -MOTOR_IMPULSE, MOTOR_IMPULSE
        self.stopped = 1  # −1 at the outer stop, 0 between

    def begin(self) -> None:
        """Prepare the sweeps of a step."""
        self._reach()
        stopped = 1 if self._bend() <= STOP else -1 if self._bend() >= OUTER_STOP else 0
        if stopped != self.stopped:
            self.stopped, self.stop = stopped, 0.0
        # A unit twist outwards opens the hinge at this velocity.
        self.slip = -1j * self.side * (self.a / self.hull.inertia + self.b / self.leg.inertia)
        closing = (self.slip.conjugate() * self._closing(self.slip)).real
        self.ease = 1 / self.stiffness + closing
        self._push(self.impulse, self.motor + self.stop)

    def sweep(self) -> None:
        """Motor, then stop and hinge together."""
        motor = self.motor - self.stiffness * (self._opening() + MOTOR)
        motor = clip(motor, -MOTOR_IMPULSE, MOTOR_IMPULSE)
        self._push(0j, motor - self.motor)
        self.motor = motor
        gap, twist = self.leg.at(self.b) - self.hull.at(self.a), 0.0
        if self.stopped:
            opening = self._opening() + (self.slip.conjugate() * self._closing(gap)).real
            stop = self.stopped * max(self.stopped * (self.stop - opening / self.ease), 0.0)
            self.stop, twist = stop, stop - self.stop
        impulse = self._closing(gap + self.slip * twist)
        self._push(impulse, twist)
        self.impulse += impulse

    def sweep_places(self) -> bool:
        """Stop, then hinge; whether both were within their slack."""
        over = 0.0
        if self.stopped:
            over = STOP - self._bend() if self.stopped == 1 else self._bend() - OUTER_STOP
            twist = self.stopped * self.stiffness * clip(over - ANGLE_SLACK, 0.0, MOST_ANGLE)
            self.hull.shift(0j, self.side * twist)
            self.leg.shift(0j, -self.side * twist)
        self._reach()
        gap = self.leg.place + self.b - self.hull.place - self.a
        impulse = self._closing(gap)
        self.hull.shift(-impulse, -cross(self.a, impulse))
        self.leg.shift(impulse, cross(self.b, impulse))
        return abs(gap) <= SLACK and over <= ANGLE_SLACK

    def _reach(self) -> None:
        hull, leg = self.hull, self.leg
        self.a, self.b = rect(1, hull.angle) * self.arms[0], rect(1, leg.angle) * self.arms[1]
        # An impulse p opens the hinge by diagonal·p − tilt·p*.
        self.tilt = (self.a**2 / hull.inertia + self.b**2 / leg.inertia) / 2
        self.diagonal = (abs(self.a) ** 2 / hull.inertia + abs(self.b) ** 2 / leg.inertia) / 2
        self.diagonal += 1 / hull.mass + 1 / leg.mass
        self.determinant = self.diagonal**2 - abs(self.tilt) ** 2

    def _closing(self, gap: complex) -> complex:
        """The impulse that takes a gap away."""
        return -(self.diagonal * gap + self.tilt * gap.conjugate()) / self.determinant

    def _bend(self) -> float:
        return -self.side * (self.leg.angle - self.hull.angle)

    def _opening(self) -> float:
        return -self.side * (self.leg.rate - self.hull.rate)

    def _push(self, impulse: complex, outwards: float) -> None:
        twist = -self.side * outwards
        self.hull.push(-impulse, -cross(self.a, impulse) - twist)
        self.leg.push(impulse, cross(self.b, impulse) + twist)
