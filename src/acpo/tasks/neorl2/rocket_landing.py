"""A rocket's hull and legs with a leg near the ground, moved as Box2D moves them.

Box2D's answer is not the solution of the equations of motion: between hull and ground, a leg of a
seventieth of the hull's mass takes more than 180 sweeps to settle. What they leave is what the task
observes, so they are repeated here, by the same method and constants.

A step of 0.02 s begins with the velocities after forces. In a sweep each constraint in turn gives
the bodies the impulse that it alone would need, and keeps the sum of its impulses in bounds:

    motor      q' = −0.3, |sum| ≤ 40·0.02, where q is a leg's angle outwards from the hull
    stop       q' ≥ 0 where q ≤ 0.35, q' ≤ 0 where q ≥ 0.85
    hinge      leg and hull do not part
    friction   a corner on the ground does not slip, |sum| ≤ √(0.1·0.2) of its pressure
    pressure   a corner within 0.02 of the ground does not come nearer

The next step begins with the same sums. Then the bodies move, and sweeps over places close what has
opened. A leg that is in the ground after all goes back to where it met the ground and through the
rest of the step alone: off its hinge, so that the hull feels the blow in the next step.

The hull itself never stands: an episode ends before it is so low.
"""

from __future__ import annotations

import math
from cmath import rect

from acpo.tasks.neorl2.rocket_bodies import PIXEL, SLACK, STEP, Body, Hinge, clip, cross

FRICTION = math.sqrt(0.1 * 0.2)
CORNERS = [complex(x, y) * PIXEL for x, y in ((-2, -8), (2, -8), (2, 8), (-2, 8))]
SWEEPS, PLACE_SWEEPS = 180, 60
# Shapes keep a skin apart; a sweep over places takes a part off a corner's depth in it.
SKIN, PART = 0.02, 0.2
# The same for a leg that goes back, at most so many times in a step, to where a corner is so high.
BACK_PART, BACK_SWEEPS, BACKS = 0.75, 20, 8
MET, MET_TOLERANCE = 0.005, 0.00125


class Foot:
    """The corners of a leg on level ground, which ends at 0 and at `width`."""

    def __init__(self, leg: Body, ground: float, width: float) -> None:
        self.leg, self.ground, self.width = leg, ground, width
        self.standing: list[int] = []
        self.impulses = [0j] * len(CORNERS)  # friction + i·pressure

    def find(self) -> None:
        """Which corners stand."""
        turn = rect(1, self.leg.angle)
        points = [self.leg.place - 1j * self.ground + turn * corner for corner in CORNERS]
        self.standing = [
            i for i, p in enumerate(points) if p.imag <= SKIN and 0 <= p.real <= self.width
        ]

    def begin(self, impulses: list[complex]) -> None:
        """Prepare sweeps that begin with these sums."""
        self.arms = [rect(1, self.leg.angle) * corner for corner in CORNERS]
        self.impulses = [0j] * len(CORNERS)
        for i in self.standing:
            # The contact lies midway between corner and ground.
            self.arms[i] -= 0.5j * ((self.leg.place + self.arms[i]).imag - self.ground)
            self._push(i, impulses[i])

    def sweep(self) -> None:
        """Friction, then pressure."""
        for i in self.standing:
            arm, old, bound = self.arms[i], self.impulses[i].real, FRICTION * self.impulses[i].imag
            new = old - self.leg.at(arm).real / self.leg.ease(arm, 1)
            self._push(i, complex(clip(new, -bound, bound) - old))
        for i in self.standing:
            arm, old = self.arms[i], self.impulses[i].imag
            new = old - self.leg.at(arm).imag / self.leg.ease(arm, 1j)
            self._push(i, 1j * (max(new, 0.0) - old))

    def sweep_places(self, part: float, slack: float) -> bool:
        """Raise corners to their skin; whether none was deeper than the slack."""
        deepest = 0.0
        for i in self.standing:
            arm = rect(1, self.leg.angle) * CORNERS[i]
            depth = self.ground + SKIN - (self.leg.place + arm).imag
            raised = 1j * part * max(depth - SLACK, 0.0) / self.leg.ease(arm, 1j)
            self.leg.shift(raised, cross(arm, raised))
            deepest = max(deepest, depth)
        return deepest <= slack

    def meet(self, place: complex, angle: float) -> None:
        """If the leg went into the ground on its way from here, let it land there."""
        leg, left, kept = self.leg, 1.0, self.impulses
        for _ in range(BACKS):
            clear = self._clear(place, angle)
            if clear == 1:
                break
            leg.place = place + clear * (leg.place - place)
            leg.angle = angle + clear * (leg.angle - angle)
            self.find()
            for _ in range(BACK_SWEEPS):
                if self.sweep_places(BACK_PART, 1.5 * SLACK):
                    break
            place, angle, left = leg.place, leg.angle, left * (1 - clear)
            self.begin([0j] * len(CORNERS))
            for _ in range(SWEEPS):
                self.sweep()
            leg.place += left * STEP * leg.velocity
            leg.angle += left * STEP * leg.rate
        self.impulses = kept

    def _clear(self, place: complex, angle: float) -> float:
        """The part of the leg's way from here before it meets the ground."""

        def height(part: float) -> float:
            turn = rect(1, angle + part * (self.leg.angle - angle))
            centre = place + part * (self.leg.place - place)
            return min((centre + turn * corner).imag for corner in CORNERS) - self.ground

        if height(1.0) > MET - MET_TOLERANCE or height(0.0) < MET - MET_TOLERANCE:
            return 1.0
        clear, step = 0.0, 0.5
        while step > 1e-3:
            clear += step if height(clear + step) > MET else 0.0
            step /= 2
        return clear

    def _push(self, corner: int, impulse: complex) -> None:
        self.impulses[corner] += impulse
        self.leg.push(impulse, cross(self.arms[corner], impulse))


class Rocket:
    """Hull and legs of one episode."""

    def __init__(self, hull: Body, hinges: list[Hinge], ground: float, width: float) -> None:
        self.hull, self.hinges = hull, hinges
        self.feet = [Foot(hinge.leg, ground, width) for hinge in hinges]

    def step(self, velocity: complex, rate: float, gravity: float) -> None:
        """Move for 0.02 s, from velocities of the hull that have the forces on it in them."""
        self.hull.velocity, self.hull.rate = velocity, rate
        for foot in self.feet:
            foot.leg.velocity -= 1j * STEP * gravity
            foot.find()
            foot.begin(foot.impulses)
        for hinge in self.hinges:
            hinge.begin()
        for _ in range(SWEEPS):
            for hinge in self.hinges:
                hinge.sweep()
            for foot in self.feet:
                foot.sweep()
        starts = [(foot.leg.place, foot.leg.angle) for foot in self.feet]
        for body in (self.hull, *(foot.leg for foot in self.feet)):
            body.place += STEP * body.velocity
            body.angle += STEP * body.rate
        self.settle()
        self.meet(starts)

    def settle(self) -> None:
        """Put legs on their hinges and out of the ground."""
        for _ in range(PLACE_SWEEPS):
            settled = [foot.sweep_places(PART, 3 * SLACK) for foot in self.feet]
            if all(settled + [hinge.sweep_places() for hinge in self.hinges]):
                break

    def meet(self, starts: list[tuple[complex, float]]) -> None:
        """Let legs land that went into the ground on their way from these places and angles."""
        for foot, start in zip(self.feet, starts, strict=True):
            foot.meet(*start)
