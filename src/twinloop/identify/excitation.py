"""Design excitation motions: choose and improve motion segments that maximize Fisher information.

Segments ("pieces") begin and end at rest at home, so their information adds up. The best set of many random segments is
an exact optimal design, computed by exchange from several starts (Fedorov, Theory of Optimal Experiments, 1972;
Atkinson, Donev & Tobias, Optimum Experimental Designs, with SAS, 2007, ch. 12). The chosen segments are then blended
with others as long as the information grows. Information is averaged over plausible parameters, because the true ones
are unknown (pseudo-Bayesian design, Chaloner & Verdinelli, Statistical Science 10, 1995).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.hardware.limits import ClearanceCheck
from twinloop.identify.excitation_motions import SHAPES, MotionTrials, scale_into_limits
from twinloop.identify.fisher import FisherInformation

Array = NDArray[np.float64]
Criterion = Literal["D", "A", "E"]
_STARTS, _PASSES = 3, 4
_RANDOM = 100  # random designs to compare with
_CHILDREN = 12
_BLENDS = (0.15, 0.5)
_SHORTEST = 2.0
_LONGEST = 600.0  # s; the search time grows with the square of the number of pieces


@dataclass(frozen=True, kw_only=True)
class ExcitationOptions:
    """Options of the search for an excitation.

    Attributes:
        duration: duration of one pass, s.
        repeat: number of recordings of the motion; each pass is one episode.
        piece: duration of one segment, s; the pass consists of whole segments.
        pool: number of random candidate segments.
        rounds: number of improvement attempts per chosen segment.
        criterion: measure of the parameters' covariance, in prior standard deviations, that is minimized: determinant
            (D), trace (A) or largest eigenvalue (E).
        seed: seed of all random draws.
    """

    duration: float = 30.0
    repeat: int = 4
    piece: float = 5.0
    pool: int = 48
    rounds: int = 1
    criterion: Criterion = "D"
    seed: int = 0

    def __post_init__(self) -> None:
        if not min(self.duration, self.piece) >= _SHORTEST:
            raise InputError(
                f"An excitation of {self.duration:g} s in pieces of {self.piece:g} s is too short to move and "
                f"return home. Give at least {_SHORTEST:g} s of each."
            )
        if not self.duration <= _LONGEST:
            raise InputError(
                f"An excitation of {self.duration:g} s is too long for the search. Give at most {_LONGEST:g} s, and "
                "repeat it."
            )
        if self.repeat < 1 or self.pool < 1 or self.rounds < 0:
            raise InputError("--repeat and pool must be at least 1, rounds at least 0.")

    @property
    def pieces(self) -> int:
        """Number of segments in one pass."""
        return max(1, round(self.duration / self.piece))


@dataclass(frozen=True, kw_only=True)
class Excitation:
    """A suggested motion and its expected Fisher information.

    ``commands`` ``(T, n)`` are in SI units at the twin's control rate; ``kinds`` are the shapes of its segments.
    ``told`` is the information of one pass at every plausible point, ``(npoint, p, p)``; ``excited`` ``(npoint, p)`` is
    how far each parameter moves the readings. ``gain`` is the criterion averaged over points, with the earlier
    information and all passes. ``random_gain`` is the mean and best criterion of random designs of Fourier segments.
    ``following`` ``(n,)`` is the largest distance of readings from commands. ``tried`` is the number of simulated
    motions, ``refused`` the number of drawn segments that violate the robot's limits.
    """

    commands: Array
    kinds: tuple[str, ...]
    told: FisherInformation
    excited: Array
    gain: float
    random_gain: tuple[float, float]
    following: Array
    tried: int
    refused: int


@dataclass
class _CandidatePool:
    """Admissible segments ``(m, T, n)``, their kinds, and their information ``(npoint, m, p, p)``."""

    pieces: Array
    kinds: list[str]
    told: FisherInformation


def suggest_excitation(
    trials: MotionTrials, before: FisherInformation, columns: Sequence[int], options: ExcitationOptions
) -> Excitation:
    """Return the most informative motion about some of the parameters, within the robot's limits.

    Args:
        trials: twin, plausible parameters, noise, limits.
        before: information that is available already at every point, ``(npoint, p, p)``.
        columns: columns of the parameters of interest; the others are nuisance parameters.
        options: options of the search.

    Raises:
        InputError: no motion keeps the limits.
    """
    score = _make_scorer(trials.space.column("sd"), np.asarray(columns), options.criterion)
    pool, refused = _draw_pool(trials, options)
    tried = options.pool

    def gain(chosen: Sequence[int]) -> float:
        return score(_add_segments(before, pool.told, chosen, options.repeat))

    chosen = _exchange_segments(gain, len(pool.pieces), options)
    for number in range(options.rounds * options.pieces):
        tried += _improve_by_blending(trials, pool, chosen, number, gain, options)
    commands = np.concatenate(pool.pieces[chosen])
    told = trials.motion_information(commands[None], alone=True)
    fine, lag = trials.find_admissible(commands[None])
    if not fine[0]:
        raise InputError(
            "Each piece of this excitation keeps the limits, but their sequence does not. Try another seed."
        )
    return Excitation(
        commands=commands,
        kinds=tuple(pool.kinds[i] for i in chosen),
        told=FisherInformation(matrix=told.matrix[:, 0], score=told.score[:, 0]),
        excited=trials.motion_excitation(commands[None]),
        gain=gain(chosen),
        random_gain=_score_random_designs(gain, pool.kinds, options),
        following=lag[0],
        tried=tried,
        refused=refused,
    )


def _make_scorer(sd: Array, columns: NDArray[np.intp], criterion: Criterion) -> Callable[[FisherInformation], float]:
    """Return a function that scores information ``(npoint, p, p)``; larger is better, D is in nats over the prior."""
    names: Mapping[Criterion, Callable[[Array], NDArray[np.floating]]] = {
        "D": lambda part: -0.5 * np.linalg.slogdet(part)[1],
        "A": lambda part: -np.trace(part, axis1=-2, axis2=-1),
        "E": lambda part: -np.linalg.eigvalsh(part)[..., -1],
    }
    if criterion not in names:
        raise InputError(f"There is no criterion {criterion}. Choose among D, A and E.")
    measure, scale = names[criterion], sd[columns][:, None] * sd[columns]

    def score(told: FisherInformation) -> float:
        covariance = told.covariance(sd)[:, columns[:, None], columns] / scale
        return float(np.mean(measure(covariance)))

    return score


def _add_segments(
    before: FisherInformation, told: FisherInformation, chosen: Sequence[int], repeat: int
) -> FisherInformation:
    rows = list(chosen)
    added = FisherInformation(matrix=told.matrix[:, rows].sum(axis=1), score=told.score[:, rows].sum(axis=1))
    return before + added.times(repeat)


def _draw_pool(trials: MotionTrials, options: ExcitationOptions) -> tuple[_CandidatePool, int]:
    """Draw segments of every kind in turn; return the admissible ones and the number of rejected ones."""
    hz, home, limits = trials.twin.control_hz, trials.home, trials.limits
    time = np.arange(round(options.piece * hz)) / hz
    swings = trials.twin.robot.control == "torque"
    clearance = None if swings else ClearanceCheck(trials.twin, limits.clearance)
    kinds, drawn = [], []
    for number in range(options.pool):
        kind = list(SHAPES)[number % len(SHAPES)]
        rows = SHAPES[kind](generator(options.seed, "excitation/piece", number), time, home, limits)
        kept = scale_into_limits(rows, home, limits, hz, clearance)
        if kept is not None:
            kinds.append(kind)
            drawn.append(kept)
    pieces = np.array(drawn).reshape(len(drawn), len(time), len(home))
    fine = trials.find_admissible(pieces)[0] if len(pieces) else np.zeros(0, dtype=bool)
    if not fine.any():
        raise InputError(
            f"None of {options.pool} motions of {trials.twin.name} keeps its limits at every plausible parameter: "
            "range, speed, torque, or clearance at home. Widen the limits, or draw a larger pool."
        )
    pieces, kinds = pieces[fine], [kind for kind, good in zip(kinds, fine, strict=True) if good]
    return _CandidatePool(pieces=pieces, kinds=kinds, told=trials.motion_information(pieces)), options.pool - len(kinds)


def _exchange_segments(gain: Callable[[Sequence[int]], float], count: int, options: ExcitationOptions) -> list[int]:
    """Return the best set that exchanges of single segments reach from a greedy and from random starts."""
    random = generator(options.seed, "excitation/exchange", 0)
    starts = [random.integers(count, size=options.pieces).tolist() for _ in range(_STARTS - 1)]
    greedy: list[int] = []
    for _ in range(options.pieces):
        greedy.append(int(np.argmax([gain([*greedy, i]) for i in range(count)])))
    found = [_improve_by_exchange(gain, start, count) for start in (greedy, *starts)]
    return max(found, key=gain)


def _improve_by_exchange(gain: Callable[[Sequence[int]], float], chosen: list[int], count: int) -> list[int]:
    best = gain(chosen)
    for _ in range(_PASSES):
        before = best
        for slot in range(len(chosen)):
            gains = [gain([*chosen[:slot], i, *chosen[slot + 1 :]]) for i in range(count)]
            if max(gains) > best:
                chosen, best = [*chosen[:slot], int(np.argmax(gains)), *chosen[slot + 1 :]], max(gains)
        if best <= before:
            break
    return chosen


def _improve_by_blending(
    trials: MotionTrials,
    pool: _CandidatePool,
    chosen: list[int],
    number: int,
    gain: Callable[[Sequence[int]], float],
    options: ExcitationOptions,
) -> int:
    """Blend one chosen segment with others and keep the best blend if it is better; return the number of blends."""
    slot, random = number % len(chosen), generator(options.seed, "excitation/mend", number)
    parent, home, hz = pool.pieces[chosen[slot]], trials.home, trials.twin.control_hz
    clearance = None if trials.twin.robot.control == "torque" else ClearanceCheck(trials.twin, trials.limits.clearance)
    children = []
    for other in random.integers(len(pool.pieces), size=_CHILDREN):
        part, scale = random.uniform(*_BLENDS), random.uniform(0.9, 1.3)
        blend = home + scale * ((1.0 - part) * (parent - home) + part * (pool.pieces[other] - home))
        kept = scale_into_limits(
            np.clip(blend, trials.limits.low, trials.limits.high), home, trials.limits, hz, clearance
        )
        if kept is not None:
            children.append(kept)
    if not children:
        return 0
    fine, _ = trials.find_admissible(np.array(children))
    if not fine.any():
        return len(children)
    pieces = np.array(children)[fine]
    told, first = trials.motion_information(pieces), len(pool.pieces)
    pool.pieces = np.concatenate([pool.pieces, pieces])
    pool.kinds += [f"{pool.kinds[chosen[slot]]}, blended"] * len(pieces)
    pool.told = FisherInformation(
        matrix=np.concatenate([pool.told.matrix, told.matrix], axis=1),
        score=np.concatenate([pool.told.score, told.score], axis=1),
    )
    gains = [gain([*chosen[:slot], i, *chosen[slot + 1 :]]) for i in range(first, first + len(pieces))]
    if max(gains) > gain(chosen):
        chosen[slot] = first + int(np.argmax(gains))
    return len(children)


def _score_random_designs(
    gain: Callable[[Sequence[int]], float], kinds: Sequence[str], options: ExcitationOptions
) -> tuple[float, float]:
    """Return mean and best gain of random designs of Fourier segments; of all segments if there are none."""
    series = [i for i, kind in enumerate(kinds) if kind == "fourier"] or list(range(len(kinds)))
    random = generator(options.seed, "excitation/chance", 0)
    gains = [gain(random.choice(series, size=options.pieces).tolist()) for _ in range(_RANDOM)]
    return float(np.mean(gains)), float(np.max(gains))
