"""Updates per second: ours, the peer's, and what this machine's matrix products allow.

Every measurement runs in a process of its own, confined to as many CPUs as it may have threads,
and the measurements take turns over several rounds, so that a busy machine slows all alike. Of
each the best round counts: interference can only slow a program down.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

OBSERVATION_DIM, ACTION_DIM = 11, 3  # Hopper's
HIDDEN, BATCH = (256, 256), 256
ROWS = 100_000
FIVE = 5


def products() -> list[tuple[int, int, int]]:
    """Shapes (m, k, n) of the matrix products of one ACPO update, forward and backward.

    π(s) once forward and back; V(s) forward and back and V(s') forward; two Q(s,a) forward and
    back; two target Q(s,ã) forward. Backward, each layer has one product for its weights and,
    except the first, one for its input.
    """

    def network(inputs: int, outputs: int, forward: int, backward: int) -> list[Any]:
        sizes = (inputs, *HIDDEN, outputs)
        shapes = []
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            shapes += [(BATCH, fan_in, fan_out)] * forward
            shapes += [(fan_in, BATCH, fan_out)] * backward
            shapes += [(BATCH, fan_out, fan_in)] * (backward if layer else 0)
        return shapes

    s, a = OBSERVATION_DIM, ACTION_DIM
    return [
        *network(s, 2 * a, forward=1, backward=1),
        *network(s, 1, forward=2, backward=1),
        *network(s + a, 1, forward=2, backward=2),
        *network(s + a, 1, forward=2, backward=0),
    ]


def flops_per_update() -> int:
    """2·m·k·n summed over the products; everything else is small beside them."""
    return sum(2 * m * k * n for m, k, n in products())


def repeat(call: Callable[[], int], seconds: float) -> float:
    """Updates per second of `call`, which says how many it did; one call warms up."""
    call()
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += call()
    return done / (time.perf_counter() - start)


def ours(seeds: int, seconds: float) -> float:
    """Updates per second of ACPO, all seeds added up."""
    from acpo.algorithms.acpo import ACPO
    from acpo.cci import dual
    from acpo.training.prepare import Layout

    algorithm = ACPO(
        rule=dual(-1.0),
        head="squashed",
        batch_size=BATCH,
        hidden=HIDDEN,
        value_start=0.0,
        entropy_price=1.0,
    )
    layout = Layout(OBSERVATION_DIM, ACTION_DIM, 2 * ACTION_DIM)
    return updates_per_second(algorithm, layout, seeds, seconds)


def updates_per_second(algorithm: Any, layout: Any, seeds: int, seconds: float) -> float:
    """The rate of the training loop's own compiled chunk, all seeds added up."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from acpo.algorithms.base import Spec
    from acpo.training import program

    rng = np.random.default_rng(0)
    rows = jnp.asarray(rng.uniform(-1, 1, (ROWS, layout.width)).astype(np.float32))
    spec = Spec(OBSERVATION_DIM, ACTION_DIM, 1_000_000)
    states, keys = program.init(algorithm, spec, jnp.arange(seeds))
    length = max(500 // seeds, 1)
    chunk = program.make_chunk(algorithm, layout, length)

    def call() -> int:
        nonlocal states
        states, metrics = chunk(states, keys, jnp.int32(0), rows)
        jax.block_until_ready(metrics)
        return length * seeds

    return repeat(call, seconds)


def limit_numpy(seconds: float) -> float:
    """Updates per second if an update were its matrix products alone, by numpy's BLAS."""
    import numpy as np

    shapes = products()
    sizes = {size for m, k, n in shapes for size in ((m, k), (k, n), (m, n))}
    arrays = {size: np.ones(size, np.float32) for size in sizes}

    def call() -> int:
        for _ in range(20):
            for m, k, n in shapes:
                # No `out`: for square products it would alias an operand.
                arrays[m, k] @ arrays[k, n]
        return 20

    return repeat(call, seconds)


def limit_xla(seconds: float) -> float:
    """The same by XLA; barriers keep it from hoisting or pruning any product."""
    import jax
    import jax.numpy as jnp

    operands = [(jnp.ones((m, k)), jnp.ones((k, n))) for m, k, n in products()]
    length = 100

    @jax.jit
    def run(operands: Any) -> Any:
        def body(carry: Any, _: None) -> tuple[Any, None]:
            held, carry = jax.lax.optimization_barrier((operands, carry))
            results = jax.lax.optimization_barrier([x @ y for x, y in held])
            return carry + sum(result[0, 0] for result in results), None

        return jax.lax.scan(body, jnp.float32(0), None, length=length)[0]

    def call() -> int:
        run(operands).block_until_ready()
        return length

    return repeat(call, seconds)


WORKERS: dict[str, Callable[[float], float]] = {
    "ours": lambda seconds: ours(1, seconds),
    "five_seeds": lambda seconds: ours(FIVE, seconds),
    "numpy": limit_numpy,
    "xla": limit_xla,
}
PEER = "peer"


def _measure(what: str, threads: int, seconds: float) -> float | None:
    """Run one measurement in a fresh process on `threads` CPUs; None if it could not run."""
    if what == PEER:
        return in_a_process("acpo.bench.peer_d3rlpy", [PEER, "awac"], threads, seconds)
    return in_a_process("acpo.bench.speed", [what], threads, seconds)


def in_a_process(module: str, words: list[str], threads: int, seconds: float) -> float | None:
    """The number that `python -m module WORDS threads seconds` prints; None if it fails."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    done = subprocess.run(
        [sys.executable, "-m", module, *words, str(threads), str(seconds)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **dict.fromkeys(names, str(threads))},
    )
    if done.returncode:
        return None
    return float(done.stdout.strip().splitlines()[-1])


def confine(threads: int) -> None:
    """Keep this process to its first `threads` CPUs; before JAX or torch is imported."""
    # XLA sizes its thread pool by the CPUs a process may use. Not every system can tell it.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def measure(rounds: int, seconds: float, peer: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """All measurements, taking turns; see the module's docstring."""
    plan = [(what, threads) for threads in (1, 2) for what in ("ours", "numpy", "xla")]
    plan += [("five_seeds", 2)]
    if peer:
        plan += [(PEER, 1), (PEER, 2)]
    best: dict[tuple[str, int], float] = {}
    for number in range(rounds):
        for what, threads in plan:
            rate = _measure(what, threads, seconds)
            if rate is not None:
                best[what, threads] = max(rate, best.get((what, threads), 0.0))
                say(f"round {number + 1}: {what}, {threads} threads: {rate:.1f} updates/s")

    def both(*names: str) -> dict[str, float | None]:
        rates = {n: [best[w, n] for w in names if (w, n) in best] for n in (1, 2)}
        return {f"threads_{n}": max(rates[n], default=None) for n in (1, 2)}

    found, theirs, limit = both("ours"), both(PEER), both("numpy", "xla")
    fastest = max(rate for rate in found.values() if rate)
    peers = [rate for rate in theirs.values() if rate]
    best_at = max(found, key=lambda name: found[name] or 0.0)
    return {
        "updates_per_s": found,
        "peer": "d3rlpy 2.8 AWAC",
        "peer_updates_per_s": theirs,
        "ratio_to_peer": fastest / max(peers) if peers else None,
        "limit_updates_per_s": limit,
        "share_of_limit": fastest / (limit[best_at] or float("nan")),
        "share_of_limit_by_threads": {
            name: (found[name] or 0.0) / (limit[name] or float("nan")) for name in found
        },
        "flops_per_update": flops_per_update(),
        "five_seeds_updates_per_s": best["five_seeds", 2],
        "sizes": {
            "observations": OBSERVATION_DIM,
            "actions": ACTION_DIM,
            "hidden": HIDDEN,
            "batch": BATCH,
        },
        "rounds": rounds,
        "seconds": seconds,
    }


if __name__ == "__main__":
    confine(int(sys.argv[2]))
    print(WORKERS[sys.argv[1]](float(sys.argv[3])))
