"""What may be wrong with a dataset that could be loaded: faults that the form does not show."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from acpo.data.dataset import Dataset
from acpo.data.inspect import WIDTH, sample
from acpo.data.pairing import Steps
from acpo.data.scan import SHOWN, Scan, breaks, episode_hashes, first_equal

Severity = Literal["error", "warning", "note"]
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")

FEW_ROWS, FEW_EPISODES = 1_000, 5
MANY_DUPLICATES = 0.01
MANY_SINGLE_ROWS = 0.1
# A successor is the next row up to this share of its column's deviation, and up to the rounding of
# float32 where it was computed by another way.
CHAIN_TOLERANCE, ROUNDING = 1e-4, 1e-6
# Rewards: what counts as another scale, in log units and in robust deviations over the episodes;
# fewer rewards than the last number do not show an episode's scale.
SCALE_FACTOR, SCALE_DEVIATIONS, SCALE_REWARDS = 20.0, 6.0, 10
# So many terminals at one step, so many times more than at any other late one, are no chance.
SEVERAL_TERMINALS, SPIKE = 5, 5
SOME_AT_BOUNDS, MOST_AT_BOUNDS = 0.05, 0.5
SMALL_ACTION = 0.1
LARGE_OBSERVATION, LARGE_DEVIATION = 1e6, 50.0


@dataclass(frozen=True)
class Problem:
    """One finding.

    Args:
        severity: "error" where training on the data would be wrong, "warning" where it is likely
            to disappoint, "note" for what is worth knowing.
        what: One sentence with the numbers.
        remedy: One sentence.
        rows: The first few rows concerned, as the source counts them: from 0, with the last row of
            each cut-off episode, even where that had no successor and became no transition.
    """

    severity: Severity
    what: str
    remedy: str
    rows: tuple[int, ...] = ()


def find(data: Dataset, steps: Steps | None = None) -> list[Problem]:
    """The problems of a dataset, worst first.

    Args:
        steps: The rows as the source has them, for a fault that paired rows no longer show.
    """
    scan = Scan(data)
    checks = (_leaks, _chain, _time_limits, _rewards, _observations, _actions, _repeats, _size)
    found = [problem for check in checks for problem in check(scan)]
    if steps is not None and steps.timeouts is not None:
        found += _ambiguous_ends(steps)
    return sorted(found, key=lambda problem: _ORDER.index(problem.severity))


def fatal(problems: Iterable[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)


def describe(problems: Sequence[Problem]) -> list[str]:
    """Each problem with its first rows and its remedy, in lines of at most 100 columns."""
    if not problems:
        return ["No problems found."]
    lines, margin = [], " " * 9
    for problem in problems:
        rows = f"First rows: {', '.join(map(str, problem.rows))}" if problem.rows else ""
        start = f"{problem.severity + ':':<9}"
        for indent, text in ((start, problem.what), (margin, rows), (margin, problem.remedy)):
            lines += textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=margin)
    counts = {kind: sum(p.severity == kind for p in problems) for kind in _ORDER}
    return [*lines, ", ".join(_counted(count, kind) for kind, count in counts.items() if count)]


def _leaks(scan: Scan) -> Iterator[Problem]:
    if scan.data.validation is None:
        return
    held = Scan(scan.data.validation)
    hashes, episodes = episode_hashes(held)
    whole = episodes[np.isin(hashes, episode_hashes(scan)[0])]
    if len(whole):
        yield Problem(
            "error",
            "Validation episodes that also occur in the training data: "
            f"{_of(len(whole), held.data.num_episodes)}, {_listed(whole)}.",
            "Hold out other episodes, or remove these from the training data.",
            held.first_rows(whole),
        )
    shared = np.isin(held.hashes, scan.hashes) & ~np.isin(held.data.episode_ids, whole)
    if shared.any():
        yield Problem(
            "warning",
            "Validation rows that also occur in the training data: "
            f"{_of(int(shared.sum()), len(shared))}.",
            "Validate on episodes that were recorded apart; a few rows may agree by chance where "
            "the system starts or rests in one state.",
            held.source_rows(np.flatnonzero(shared)),
        )


def _chain(scan: Scan) -> Iterator[Problem]:
    if scan.chained:
        return
    data, size = scan.data, np.maximum(np.abs(scan.observations.low), scan.observations.high)
    tolerance = CHAIN_TOLERANCE * scan.observations.std + ROUNDING * size
    first, found = 0, []
    for block in data.blocks():
        found.append(breaks(data, first, len(block.rewards), tolerance))
        first += len(block.rewards)
    rows, inside = np.concatenate(found), len(data) - int((data.episodes.rows > 0).sum())
    if not len(rows):
        return
    if len(rows) < inside / 2:
        severity: Severity = "error"
        cause = "some episodes' ends are not marked, or some next observations are wrong"
        remedy = "Mark a timeout at these rows if the recording was cut there, else repair them."
    else:
        severity = "warning"
        cause = "the rows were shuffled or thinned out, or the two are measured differently"
        remedy = "Check that next observations are meant so; do not trust returns and lengths."
    yield Problem(
        severity,
        "The next observation is not the observation of the row that follows, though the episode "
        f"goes on, in {_of(len(rows), inside)} rows: {cause}.",
        remedy,
        scan.source_rows(rows),
    )


def _time_limits(scan: Scan) -> Iterator[Problem]:
    ended, lengths = scan.ended, scan.data.episode_lengths
    longest = int(lengths.max())
    at_limit = ended[lengths[ended] == longest]
    before = lengths[ended][(lengths[ended] >= longest // 2) & (lengths[ended] < longest)]
    usual = np.unique_counts(before).counts.max(initial=0)
    if not len(ended):
        yield Problem(
            "note",
            "No row is a terminal: every episode was cut off.",
            "This is right for a task that never ends by itself; if it does, mark its ends.",
        )
    # Episodes of one step are decisions without consequence, each of which does end there.
    elif longest > 1 and len(at_limit) >= max(SEVERAL_TERMINALS, SPIKE * usual):
        every = len(at_limit) == len(ended)
        yield Problem(
            "error" if every else "warning",
            f"Terminals look like time limits: {'all' if every else f'{len(at_limit):,} of'} "
            f"{len(ended):,} stand at step {longest:,}, where the longest episodes end.",
            "Mark a time limit as a timeout and not as a terminal, which says that nothing is "
            "worth anything afterwards.",
            tuple(x + longest - 1 for x in scan.first_rows(at_limit)),
        )


def _rewards(scan: Scan) -> Iterator[Problem]:
    if not scan.rewarded.any():
        yield Problem(
            "warning",
            f"All {len(scan.data):,} rewards are zero.",
            "Check that the right field was read; nothing can be better or worse than the data.",
        )
    # The geometric mean over rewards that are not zero: neither sparse rewards nor one large
    # penalty at the end change an episode's scale.
    judged = np.flatnonzero(scan.rewarded >= SCALE_REWARDS)
    if len(judged) < FEW_EPISODES:
        return
    scale = scan.log_rewards[judged] / scan.rewarded[judged]
    usual = np.median(scale)
    apart = np.abs(scale - usual)
    deviation = 1.4826 * np.median(apart)
    far = apart > max(np.log(SCALE_FACTOR), SCALE_DEVIATIONS * deviation)
    if far.any():
        episodes = judged[far]
        yield Problem(
            "warning",
            "Episodes with rewards on another scale: "
            f"{_of(len(episodes), scan.data.num_episodes)}, {_listed(episodes)}; typically "
            f"{np.exp(scale[far][0]):.3g} in episode {episodes[0]}, {np.exp(usual):.3g} elsewhere.",
            "Bring all rewards to one unit, or leave these episodes out.",
            scan.first_rows(episodes),
        )


def _observations(scan: Scan) -> Iterator[Problem]:
    data, moments = scan.data, scan.observations
    constant = moments.low == moments.high
    if constant.any():
        yield Problem(
            "warning",
            f"Observation columns that never change: {constant.sum()} of {len(constant)}, "
            f"{_named(scan.observation_names, constant)}.",
            "Leave them out, unless they will change where the policy is used.",
        )
    # Without the extremes, or they could hide in the deviation that they make themselves.
    rows = data.observations[sample(len(data))]
    tail = min(max(0.001, 5 / len(rows)), 0.25)
    least = np.quantile(rows, tail, axis=0, method="higher")
    largest = np.quantile(rows, 1 - tail, axis=0, method="lower")
    clipped = np.clip(rows, least, np.maximum(least, largest)).astype(np.float64)
    deviation = np.where(least < largest, clipped.std(axis=0), moments.std)
    reach = LARGE_DEVIATION * np.where(constant, np.inf, deviation)
    low, high = clipped.mean(axis=0) - reach, clipped.mean(axis=0) + reach
    outlying = (moments.low < low) | (moments.high > high)
    if outlying.any():
        first, found = 0, []
        for block in data.blocks():
            far = ((block.observations < low) | (block.observations > high)).any(axis=1)
            found.append(first + np.flatnonzero(far))
            first += len(far)
        where = np.concatenate(found)
        yield Problem(
            "warning",
            f"Rows with observations over {LARGE_DEVIATION:g} deviations from the rest: "
            f"{_of(len(where), len(data))}, in {_ranges(scan, outlying)}.",
            "Repair these rows or remove their episodes; a sensor's error value is a usual cause.",
            scan.source_rows(where),
        )
    size = np.maximum(np.abs(moments.low), np.abs(moments.high))
    large = (size > LARGE_OBSERVATION) & ~outlying
    if large.any():
        yield Problem(
            "warning",
            f"Observations are beyond ±{LARGE_OBSERVATION:g} in {_ranges(scan, large)}; float32 "
            "keeps only seven digits.",
            "Use another unit, or subtract a fixed value before storing (a start time, say).",
        )


def _actions(scan: Scan) -> Iterator[Problem]:
    called, moments = scan.action_names, scan.actions
    constant = moments.low == moments.high
    if constant.any():
        yield Problem(
            "error",
            f"Action columns that never change: {constant.sum()} of {len(constant)}, "
            f"{_named(called, constant)}.",
            "Leave them out of the actions: nothing can be learnt about what was never tried, and "
            "log πβ grows without bound.",
        )
    largest = np.maximum(-moments.low, moments.high)
    small = (largest < SMALL_ACTION) & ~constant
    if small.any():
        yield Problem(
            "warning",
            f"Actions that stay within ±{largest[small].max():.2g} and so use little of [−1, 1]: "
            f"{_named(called, small)}.",
            "Scale actions by the bounds of the action space (--scale-actions takes them from the "
            "data).",
        )
    share = np.where(constant, 0, scan.at_bounds / len(scan.data))
    if share.max() >= SOME_AT_BOUNDS:
        yield Problem(
            "warning" if share.max() >= MOST_AT_BOUNDS else "note",
            f"Actions lie at ±1, in up to {share.max():.0%} of the rows: "
            f"{_named(called, share >= SOME_AT_BOUNDS)}; log πβ is a density and can put no mass "
            "on a bound.",
            "Make sure that no wrong scale clipped them; a controller may also saturate by itself.",
        )


def _repeats(scan: Scan) -> Iterator[Problem]:
    hashes, episodes = episode_hashes(scan)
    earlier = first_equal(hashes)
    again = np.flatnonzero(earlier != np.arange(len(earlier)))
    whole = episodes[again]
    if len(whole):
        pairs = zip(whole, episodes[earlier[again]], strict=True)
        yield Problem(
            "warning",
            f"Episodes that repeat an earlier one: {_of(len(whole), scan.data.num_episodes)}; "
            f"{_joined([f'{late} repeats {early}' for late, early in pairs])}.",
            "Remove the copies: they count double, and a held-out copy hides overfitting.",
            scan.first_rows(whole),
        )
    earlier = first_equal(scan.hashes)
    repeats = (earlier != np.arange(len(earlier))) & ~np.isin(scan.data.episode_ids, whole)
    if repeats.any():
        rows = np.flatnonzero(repeats)
        pair = scan.source_rows(np.array([rows[0], earlier[rows[0]]]))
        yield Problem(
            "warning" if repeats.mean() > MANY_DUPLICATES else "note",
            f"Rows that repeat an earlier one exactly: {_of(len(rows), len(repeats))}; row "
            f"{pair[0]} repeats row {pair[1]}.",
            "Remove copies; a system at rest may also repeat itself.",
            scan.source_rows(rows),
        )


def _size(scan: Scan) -> Iterator[Problem]:
    data = scan.data
    if len(data) < FEW_ROWS or data.num_episodes < FEW_EPISODES:
        yield Problem(
            "warning",
            f"There are only {_counted(len(data), 'row')} in "
            f"{_counted(data.num_episodes, 'episode')}.",
            f"Collect more: below {FEW_ROWS:,} rows or {FEW_EPISODES} episodes little can be "
            "learnt, and less can be held out to check it.",
        )
    single = np.flatnonzero(data.episode_lengths == 1)
    if len(single):
        yield Problem(
            "warning" if len(single) > MANY_SINGLE_ROWS * data.num_episodes else "note",
            f"Episodes of a single row: {_of(len(single), data.num_episodes)}, {_listed(single)}.",
            "Check how episodes are told apart; a cut-off episode of one row is of no use.",
            scan.first_rows(single),
        )


def _ambiguous_ends(steps: Steps) -> Iterator[Problem]:
    ended, cut = (np.ravel(x).astype(bool) for x in (steps.terminals, steps.timeouts))
    both = np.flatnonzero(ended & cut)
    if len(both):
        # By chance a system ends in its last allowed step, but not each time.
        usual = len(both) >= max(SEVERAL_TERMINALS, cut.sum() / 2)
        yield Problem(
            "error" if usual else "note",
            "Timeouts at rows that are terminals too, and are taken as such: "
            f"{_of(len(both), int(cut.sum()))}.",
            "Mark a row as a terminal only where the system itself ended.",
            tuple(both[:SHOWN].tolist()),
        )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _of(count: int, total: int) -> str:
    return f"{count:,} of {total:,} ({100 * count / total:.3g}%)"


def _listed(episodes: NDArray[Any]) -> str:
    return f"episode{'s' * (len(episodes) > 1)} {_joined([str(x) for x in episodes])}"


def _named(called: Sequence[str], chosen: NDArray[np.bool_]) -> str:
    return _joined([name for name, is_chosen in zip(called, chosen, strict=True) if is_chosen])


def _joined(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SHOWN:,} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more


def _ranges(scan: Scan, chosen: NDArray[np.bool_]) -> str:
    """The chosen observation columns with what they range over."""
    low, high = scan.observations.low, scan.observations.high
    texts = [
        f"{name} ({a:.3g} to {b:.3g})"
        for name, a, b in zip(scan.observation_names, low, high, strict=True)
    ]
    return _named(texts, chosen)
