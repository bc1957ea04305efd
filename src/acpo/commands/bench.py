"""acpo bench: how fast we are, beside a peer, on this machine."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import tyro

from acpo.bench import speed
from acpo.errors import UserError
from acpo.files import write_json


@dataclass(frozen=True)
class SpeedArguments:
    """Updates per second of ACPO, of d3rlpy's AWAC, and of the matrix products alone."""

    json: Path | None = None
    """Also write the numbers to this file."""
    rounds: int = 3
    """Rounds of measurements; of each measurement the best round counts."""
    seconds: float = 5.0
    """Seconds per measurement."""


def main(words: list[str]) -> int:
    if words[:1] != ["speed"]:
        what = "acpo bench speed [--json FILE]"
        if words[:1] in (["-h"], ["--help"]):
            print(f"usage: {what}\n\nSee acpo bench speed --help.")
            return 0
        raise UserError(f"Say what to measure: {what}.")
    arguments = tyro.cli(SpeedArguments, prog="acpo bench speed", args=words[1:])
    if arguments.rounds < 1 or arguments.seconds <= 0:
        raise UserError("--rounds and --seconds must be positive.")
    peer = importlib.util.find_spec("d3rlpy") is not None
    found = speed.measure(arguments.rounds, arguments.seconds, peer, print)
    rates, peers = found["updates_per_s"], found["peer_updates_per_s"]
    print(f"\nACPO                  {_rates(rates)}")
    if peer:
        print(f"{found['peer']:22}{_rates(peers)}")
        print(f"ratio                 {found['ratio_to_peer']:.2f} (best to best)")
    else:
        print("peer                  not installed: pip install 'acpo[bench]', or make bench")
    print(f"matrix products alone {_rates(found['limit_updates_per_s'])}")
    print(
        f"share of that limit   {100 * found['share_of_limit']:.0f} %, "
        f"{found['flops_per_update'] / 1e9:.3f} GFLOP an update"
    )
    print(f"five vmapped seeds    {found['five_seeds_updates_per_s']:.0f} updates/s in all")
    if arguments.json:
        write_json(arguments.json, found)
        print(f"written to {arguments.json}")
    return 0


def _rates(rates: dict[str, float | None]) -> str:
    one, two = rates["threads_1"], rates["threads_2"]
    return f"{one or float('nan'):.0f} updates/s on one thread, {two or float('nan'):.0f} on two"
