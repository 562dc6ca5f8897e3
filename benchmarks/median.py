"""How fast is a step that reads everyone: with `aggregate = "median"`, and with the published algorithm?

    python benchmarks/median.py [--quick]

In turns within one run: reading the same bytes once (the limit), our pass from remembered rows to the moved model, the
same in plain NumPy and in batched PyTorch, and a whole arrival, with judging its update and remembering it. Times are
minima of the clock; on a shared machine only ratios mean something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from _common import Table, in_turns, main
from numba import njit

from secureafl import ClientId, Model, SecureAFL, SecureAFLSettings, Update, Vector
from secureafl.defenses.secureafl.combine.coordinate_wise import shuffled
from secureafl.defenses.secureafl.stages import Ballot
from secureafl.kernels import BLOCK, Chunks, simd
from secureafl.kernels.threads import in_parts, num_threads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED, SERVER_LR, NUM_NOISES = 0, 0.01, 16
ALGORITHMS = {
    '`aggregate = "median"`': SecureAFLSettings(aggregate="median"),
    "the published algorithm": SecureAFLSettings.paper(percentile=1.0),  # nobody is rejected
}
SIZES = [(50, 139_960), (300, 139_960), (50, 1_000_000)]
QUICK = [(20, 20_000)]
TURNS, QUICK_TURNS = 10, 2
READ_PARTS = 64
SHOWN = {"numpy": "NumPy", "torch": "PyTorch", "arrival": "a whole arrival", "pass": "our pass"}


class Federation:
    """A defense that has heard of every client often enough to have all its pairs, and what it would hear next."""

    def __init__(self, settings: SecureAFLSettings, n: int, d: int) -> None:
        self.defense = SecureAFL(d, settings, server_lr=SERVER_LR)
        self.n, self.version = n, 0
        # As long whatever the size, so that no limit on lengths cuts anything.
        self.noise = np.random.default_rng(SEED).standard_normal((NUM_NOISES, d), dtype=np.float32)
        self.noise *= np.float32(5.0 / d**0.5)
        self.params = self.noise[0]
        for turn in range(4):
            for k in range(n):
                base, delta = self.update(k + 5 * turn)
                self.defense.history.remember(ClientId(k), delta, base)  # type: ignore[union-attr]
        for _ in range(n):
            self.arrive()

    def update(self, k: int) -> tuple[Vector, Vector]:
        """A model, and an update for it that grows with it: pairs have positive curvature."""
        base = self.params + np.float32(0.02 * (k % 7 - 3)) * self.noise[k % NUM_NOISES]
        return base, base + np.float32(0.02) * self.noise[(k + 5) % NUM_NOISES]

    def arrive(self) -> None:
        """The next client's update."""
        base, delta = self.update(self.version + 3)
        update = Update(ClientId(self.version % self.n), Model(self.version, base), delta)
        verdict = self.defense.step(update, Model(self.version, self.params))
        assert verdict.direction is not None
        self.params = self.params - np.float32(SERVER_LR) * verdict.direction
        self.params.flags.writeable = False
        self.version += 1

    def one_pass(self) -> Vector:
        """The step that the model takes if the newest client sends its last update once more."""
        estimator, combiner = self.defense.stages.estimate, self.defense.stages.combine
        assert estimator is not None
        assert combiner is not None
        sender, without = ClientId(self.n - 1), np.arange(self.n) == self.n - 1
        vote = self.defense.history.last_delta(sender)
        ballot = Ballot(estimator, estimator.weights(self.params), without, self.params, sender, vote, None, 0)
        return combiner.combine(ballot).direction

    def read(self) -> Callable[[], object]:
        """Add up all that the pass reads: what it has to do at least."""
        estimator = self.defense.stages.estimate
        assert estimator is not None
        chunks: Chunks = estimator.history._pages.chunks
        num_bytes = chunks.chunk_bytes if estimator.follows else 4 * BLOCK  # with the median, last updates alone
        num_blocks, threads = -(-len(self.params) // BLOCK), num_threads(len(self.params) * self.n * num_bytes // 256)

        def read() -> float:
            out = np.zeros((READ_PARTS, 8))
            in_parts(_read, READ_PARTS, threads, chunks.at, chunks.block_bytes, num_bytes, num_blocks, out)
            return float(out.sum())

        return read


@njit(nogil=True)
def _read(first_part, last_part, at, block_bytes, num_bytes, num_blocks, out):  # type: ignore[no-untyped-def]
    parts = len(out)
    for part in range(first_part, last_part):
        zero = simd.splat(np.float32(0))
        a, b, c, d = zero, zero, zero, zero
        for block in range(num_blocks * part // parts, num_blocks * (part + 1) // parts):
            for k in range(len(at)):
                first = at[k] + block * block_bytes
                for place in range(first, first + num_bytes, 256):
                    a, b = simd.add(a, simd.load(place)), simd.add(b, simd.load(place + 64))
                    c, d = simd.add(c, simd.load(place + 128)), simd.add(d, simd.load(place + 192))
        simd.add_wide(out[part].ctypes.data, simd.add(simd.add(a, b), simd.add(c, d)))


class Plain:
    """The same step as one would write it first, on one array (n, r, d) of everyone's rows, of NumPy or of PyTorch."""

    def __init__(self, federation: Federation, of: Callable[[Any], Any], median: Callable[[Any], Any]) -> None:
        history, n = federation.defense.history, federation.n
        state = history.state_dict()
        self.median, self.params = median, of(federation.params.copy())
        self.rows = of(np.asarray(state["rows"], np.float32))
        self.follows = federation.defense.stages.estimate.follows  # type: ignore[union-attr]
        if self.follows:
            self.matrix = of(history._matrix[:n, 2:, 2:].astype(np.float32))  # type: ignore[union-attr]
            self.sigma = of(history._sigma[:n].astype(np.float32))  # type: ignore[union-attr]
        else:
            self.order = of(np.argsort(shuffled(n, SEED)))

    def step(self) -> Any:
        votes = self.rows[:, 0]
        if self.follows:
            gap, pairs = self.params - self.rows[:, 1], self.rows[:, 2:]
            weights = self.matrix @ (pairs @ gap[:, :, None])
            votes = votes + self.sigma[:, None] * gap + (weights[:, None, :, 0] @ pairs)[:, 0]
            votes[-1] = self.rows[-1, 0]
        else:
            n, d = votes.shape
            votes = votes[self.order].reshape(n // 2, 2, d).mean(1)
        return self.params - SERVER_LR * self.median(votes)


def measure_one(algorithm: str, n: int, d: int, num_turns: int) -> dict[str, Any]:
    federation = Federation(ALGORITHMS[algorithm], n, d)
    in_numpy = Plain(federation, np.asarray, lambda votes: np.median(votes, axis=0))
    in_torch = Plain(federation, torch.from_numpy, lambda votes: votes.median(dim=0).values)
    moved = federation.params - np.float32(SERVER_LR) * federation.one_pass()
    np.testing.assert_allclose(moved, in_numpy.step(), atol=1e-7)
    tasks: dict[str, Callable[[], object]] = {
        "read": federation.read(),
        "pass": federation.one_pass,
        "numpy": in_numpy.step,
        "torch": in_torch.step,
    }
    spent = in_turns(tasks, num_turns) | in_turns({"arrival": federation.arrive}, num_turns)
    best = {name: min(each.clock for each in times) for name, times in spent.items()}
    return {
        "algorithm": algorithm,
        "clients": n,
        "parameters": d,
        "milliseconds": {name: 1e3 * seconds for name, seconds in best.items()},
        "times_reading": {name: best[name] / best["read"] for name in SHOWN},
    }


def measure(quick: bool) -> list[dict[str, Any]]:
    found = []
    for algorithm in ALGORITHMS:
        for n, d in QUICK if quick else SIZES:
            found.append(measure_one(algorithm, n, d, QUICK_TURNS if quick else TURNS))
            print(found[-1], flush=True)
    return found


def tables(results: list[dict[str, Any]]) -> list[Table]:
    ratios = ("NumPy, times our pass", "PyTorch, times our pass", "a whole arrival, times our pass")
    columns = ("", "clients", "parameters", "our pass, share of the read limit", *ratios)
    rows = []
    for found in results:
        times = found["times_reading"]
        others = (f"{times[name] / times['pass']:.3g}" for name in ("numpy", "torch", "arrival"))
        sizes = (f"{found['clients']:,}", f"{found['parameters']:,}")
        rows.append((found["algorithm"], *sizes, f"{1.0 / times['pass']:.2f}", *others))
    return [Table(columns, rows)]


def draw(results: list[dict[str, Any]]) -> tuple[Figure, str]:
    from matplotlib.figure import Figure

    figure = Figure((9.6, 3.2), layout="constrained")
    for axes, algorithm in zip(figure.subplots(1, 2, sharex=True), ALGORITHMS, strict=True):
        found = [one for one in results if one["algorithm"] == algorithm]
        for offset, (name, label) in enumerate(SHOWN.items()):
            places = [place + 0.2 * offset for place in range(len(found))]
            axes.barh(places, [one["times_reading"][name] for one in found], height=0.2, label=label)
        labels = [f"{one['clients']} clients\n{one['parameters']:,} parameters" for one in found]
        axes.set_yticks([place + 0.3 for place in range(len(found))], labels)
        axes.axvline(1.0, color="black", linestyle="--", label="the read limit")
        axes.invert_yaxis()
        axes.set(xscale="log", xlim=(0.5, None), xlabel="time / time to read the same bytes")
        axes.set_title(algorithm.replace("`", ""), fontsize="medium")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")
    return figure, "A step that reads everyone, in multiples of the time that reading the same bytes once takes."


if __name__ == "__main__":
    main(__doc__, "median", measure, tables, draw, seed=SEED)
