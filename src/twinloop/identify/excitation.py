"""Design excitation motions: choose and improve motion segments that maximize the Fisher information about parameters.

Segments begin and end at rest at the home pose, so their information adds up. The best set of many
random segments is an exact optimal design, computed by exchange from several starts (Fedorov, Theory of Optimal
Experiments, 1972; Atkinson, Donev & Tobias, Optimum Experimental Designs, with SAS, 2007, ch. 12). The chosen segments
are then blended with others as long as the information grows. Information is averaged over plausible parameters,
because the true parameters are unknown (pseudo-Bayesian design, Chaloner & Verdinelli, Statistical Science 10, 1995).
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
_RANDOM = 100  # number of random designs for comparison
_CHILDREN = 12
_BLENDS = (0.15, 0.5)
_SHORTEST = 2.0
_LONGEST = 600.0  # s; the search time grows with the square of the number of segments


@dataclass(frozen=True, kw_only=True)
class ExcitationOptions:
    """Options of the search for an excitation motion.

    Attributes:
        duration: Duration of one pass of the motion, s.
        repeat: Number of recordings of the motion; each pass is one episode.
        segment_duration: Duration of one segment, s; a pass consists of whole segments.
        pool: Number of random candidate segments.
        rounds: Number of times that the search tries to improve each chosen segment.
        criterion: Measure of the parameters' covariance that is minimized: determinant (D), trace (A) or largest
            eigenvalue (E). The covariance is in units of prior standard deviations.
        seed: Seed of all random draws.
    """

    duration: float = 30.0
    repeat: int = 4
    segment_duration: float = 5.0
    pool: int = 48
    rounds: int = 1
    criterion: Criterion = "D"
    seed: int = 0

    def __post_init__(self) -> None:
        if not min(self.duration, self.segment_duration) >= _SHORTEST:
            raise InputError(
                f"An excitation of {self.duration:g} s in segments of {self.segment_duration:g} s is too short to move "
                f"and return home. Give at least {_SHORTEST:g} s of each."
            )
        if not self.duration <= _LONGEST:
            raise InputError(
                f"An excitation of {self.duration:g} s is too long for the search. Give at most {_LONGEST:g} s, and "
                "repeat it."
            )
        if self.repeat < 1 or self.pool < 1 or self.rounds < 0:
            raise InputError("--repeat and pool must be at least 1, rounds at least 0.")

    @property
    def segment_count(self) -> int:
        """Number of segments in one pass."""
        return max(1, round(self.duration / self.segment_duration))


@dataclass(frozen=True, kw_only=True)
class Excitation:
    """Suggested excitation motion and its expected Fisher information.

    Shapes use n for joints, p for parameters, and npoint for the sets of plausible parameters.

    Attributes:
        commands: Commands ``(T, n)`` in SI units, at the twin's control rate.
        kinds: Shape of each segment, for example ``fourier``.
        information: Information of one pass at every set of plausible parameters, ``(npoint, p, p)``.
        excitation: RMS change of the readings per prior standard deviation of each parameter, in units of noise,
            ``(npoint, p)``.
        gain: Value of the design criterion, larger is better. It is computed from the information of the available data
            and all passes, and averaged over the sets of plausible parameters.
        random_gain: Mean and best criterion of random designs of Fourier segments, for comparison.
        tracking_error: Largest distance of each joint's readings from its commands, ``(n,)``, rad or m.
        simulated_motions: Number of simulated motions.
        rejected: Number of candidate segments that violate the robot's limits.
    """

    commands: Array
    kinds: tuple[str, ...]
    information: FisherInformation
    excitation: Array
    gain: float
    random_gain: tuple[float, float]
    tracking_error: Array
    simulated_motions: int
    rejected: int


@dataclass
class _CandidatePool:
    """Candidate segments that keep the robot's limits, with their Fisher information.

    Attributes:
        commands: Commands of m segments of n joints, ``(m, T, n)``, SI.
        kinds: Shape of each segment.
        information: Information of each segment at every set of plausible parameters, ``(npoint, m, p, p)``.
    """

    commands: Array
    kinds: list[str]
    information: FisherInformation


def suggest_excitation(
    trials: MotionTrials, before: FisherInformation, columns: Sequence[int], options: ExcitationOptions
) -> Excitation:
    """Search for the motion with the most information about some of the parameters, within the robot's limits.

    Args:
        trials: Simulator of motions: twin, sets of plausible parameters, noise and limits.
        before: Information of the available data at every set of plausible parameters, ``(npoint, p, p)``.
        columns: Columns of the parameters of interest; the others are nuisance parameters.
        options: Options of the search.

    Raises:
        InputError: If no motion keeps the robot's limits.
    """
    score = _make_scorer(trials.space.column("sd"), np.asarray(columns), options.criterion)
    pool, refused = _draw_pool(trials, options)
    tried = options.pool

    def gain(chosen: Sequence[int]) -> float:
        return score(_add_segments(before, pool.information, chosen, options.repeat))

    chosen = _exchange_segments(gain, len(pool.commands), options)
    for number in range(options.rounds * options.segment_count):
        tried += _improve_by_blending(trials, pool, chosen, number, gain, options)
    commands = np.concatenate(pool.commands[chosen])
    information = trials.motion_information(commands[None], separate_worlds=True)
    admissible, lag = trials.find_admissible(commands[None])
    if not admissible[0]:
        raise InputError(
            "Each piece of this excitation keeps the limits, but their sequence does not. Try another seed."
        )
    return Excitation(
        commands=commands,
        kinds=tuple(pool.kinds[i] for i in chosen),
        information=FisherInformation(matrix=information.matrix[:, 0], score=information.score[:, 0]),
        excitation=trials.motion_excitation(commands[None]),
        gain=gain(chosen),
        random_gain=_score_random_designs(gain, pool.kinds, options),
        tracking_error=lag[0],
        simulated_motions=tried,
        rejected=refused,
    )


def _make_scorer(sd: Array, columns: NDArray[np.intp], criterion: Criterion) -> Callable[[FisherInformation], float]:
    """Return a function that computes the design criterion from information ``(npoint, p, p)``; larger is better.

    Args:
        sd: Prior standard deviations of all parameters, ``(p,)``.
        columns: Columns of the parameters of interest.
        criterion: D, A or E, see `ExcitationOptions`. D is the information gained over the prior in nats.
    """
    names: Mapping[Criterion, Callable[[Array], NDArray[np.floating]]] = {
        "D": lambda part: -0.5 * np.linalg.slogdet(part)[1],
        "A": lambda part: -np.trace(part, axis1=-2, axis2=-1),
        "E": lambda part: -np.linalg.eigvalsh(part)[..., -1],
    }
    if criterion not in names:
        raise InputError(f"There is no criterion {criterion}. Choose among D, A and E.")
    measure, scale = names[criterion], sd[columns][:, None] * sd[columns]

    def score(information: FisherInformation) -> float:
        covariance = information.covariance(sd)[:, columns[:, None], columns] / scale
        return float(np.mean(measure(covariance)))

    return score


def _add_segments(
    before: FisherInformation, information: FisherInformation, chosen: Sequence[int], repeat: int
) -> FisherInformation:
    rows = list(chosen)
    added = FisherInformation(
        matrix=information.matrix[:, rows].sum(axis=1), score=information.score[:, rows].sum(axis=1)
    )
    return before + added.times(repeat)


def _draw_pool(trials: MotionTrials, options: ExcitationOptions) -> tuple[_CandidatePool, int]:
    """Draw random motion segments, in turn of each shape (Fourier series, steps, chirp, slow motion).

    Returns:
        The segments that keep the robot's limits, and the number of rejected segments.
    """
    hz, home, limits = trials.twin.control_hz, trials.home, trials.limits
    time = np.arange(round(options.segment_duration * hz)) / hz
    swings = trials.twin.robot.control == "torque"
    clearance = None if swings else ClearanceCheck(trials.twin, limits.clearance)
    kinds, segments = [], []
    for number in range(options.pool):
        kind = list(SHAPES)[number % len(SHAPES)]
        rows = SHAPES[kind](generator(options.seed, "excitation/piece", number), time, home, limits)
        scaled = scale_into_limits(rows, home, limits, hz, clearance)
        if scaled is not None:
            kinds.append(kind)
            segments.append(scaled)
    pieces = np.array(segments).reshape(len(segments), len(time), len(home))
    admissible = trials.find_admissible(pieces)[0] if len(pieces) else np.zeros(0, dtype=bool)
    if not admissible.any():
        raise InputError(
            f"None of {options.pool} motions of {trials.twin.name} keeps its limits at every plausible parameter: "
            "range, speed, torque, or clearance at home. Widen the limits, or draw a larger pool."
        )
    pieces, kinds = pieces[admissible], [kind for kind, good in zip(kinds, admissible, strict=True) if good]
    return _CandidatePool(
        commands=pieces, kinds=kinds, information=trials.motion_information(pieces)
    ), options.pool - len(kinds)


def _exchange_segments(gain: Callable[[Sequence[int]], float], count: int, options: ExcitationOptions) -> list[int]:
    """Improve several start sets of segments by exchanging single segments, and return the best set.

    One start set is built greedily, segment by segment; the other start sets are random.

    Args:
        gain: Design criterion of a set of segment indices; larger is better.
        count: Number of candidate segments.
        options: Options of the search.

    Returns:
        Indices of the ``options.segment_count`` segments of the best set; an index may occur more than once.
    """
    random = generator(options.seed, "excitation/exchange", 0)
    starts = [random.integers(count, size=options.segment_count).tolist() for _ in range(_STARTS - 1)]
    greedy: list[int] = []
    for _ in range(options.segment_count):
        greedy.append(int(np.argmax([gain([*greedy, i]) for i in range(count)])))
    improved = [_improve_by_exchange(gain, start, count) for start in (greedy, *starts)]
    return max(improved, key=gain)


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
    """Blend one chosen segment with other segments, and replace it in place if the best blend increases the gain.

    A blend is the weighted mean of the motions of two segments, with a random amplitude.

    Args:
        trials: Simulator of motions.
        pool: Candidate segments; admissible blends are appended in place.
        chosen: Indices of the chosen segments in the pool.
        number: Number of the attempt; it selects the segment and the random numbers.
        gain: Function from a set of segment indices to the value of the design criterion, larger is better.
        options: Options of the search.

    Returns:
        The number of simulated blends.
    """
    slot, random = number % len(chosen), generator(options.seed, "excitation/mend", number)
    parent, home, hz = pool.commands[chosen[slot]], trials.home, trials.twin.control_hz
    clearance = None if trials.twin.robot.control == "torque" else ClearanceCheck(trials.twin, trials.limits.clearance)
    blends = []
    for other in random.integers(len(pool.commands), size=_CHILDREN):
        part, scale = random.uniform(*_BLENDS), random.uniform(0.9, 1.3)
        blend = home + scale * ((1.0 - part) * (parent - home) + part * (pool.commands[other] - home))
        scaled = scale_into_limits(
            np.clip(blend, trials.limits.low, trials.limits.high), home, trials.limits, hz, clearance
        )
        if scaled is not None:
            blends.append(scaled)
    if not blends:
        return 0
    admissible, _ = trials.find_admissible(np.array(blends))
    if not admissible.any():
        return len(blends)
    segments = np.array(blends)[admissible]
    information, first = trials.motion_information(segments), len(pool.commands)
    pool.commands = np.concatenate([pool.commands, segments])
    pool.kinds += [f"{pool.kinds[chosen[slot]]}, blended"] * len(segments)
    pool.information = FisherInformation(
        matrix=np.concatenate([pool.information.matrix, information.matrix], axis=1),
        score=np.concatenate([pool.information.score, information.score], axis=1),
    )
    gains = [gain([*chosen[:slot], i, *chosen[slot + 1 :]]) for i in range(first, first + len(segments))]
    if max(gains) > gain(chosen):
        chosen[slot] = first + int(np.argmax(gains))
    return len(blends)


def _score_random_designs(
    gain: Callable[[Sequence[int]], float], kinds: Sequence[str], options: ExcitationOptions
) -> tuple[float, float]:
    """Return the mean and the largest gain of 100 random designs (sequences of Fourier-series segments).

    If there are no Fourier-series segments, the designs consist of segments of all shapes.

    Args:
        gain: Function from the segment indices of a design to the value of the design criterion.
        kinds: Shape of each segment.
        options: Number of segments of a design, and seed.
    """
    series = [i for i, kind in enumerate(kinds) if kind == "fourier"] or list(range(len(kinds)))
    random = generator(options.seed, "excitation/chance", 0)
    gains = [gain(random.choice(series, size=options.segment_count).tolist()) for _ in range(_RANDOM)]
    return float(np.mean(gains)), float(np.max(gains))
