"""Measure how far simulated sensors are from real ones, and find the twin's parameter that removes a difference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.plain import JsonRecord
from twinloop.core.records import Episode
from twinloop.gap.sensors.channels import SensorChannel, match_channels
from twinloop.gap.sensors.metrics import EpisodeMetrics, compute_episode_metrics, sampling_rate
from twinloop.stats import Interval, Spectrum, holm, is_on_grid, octave_edges, welch_test
from twinloop.twin.quantities import find_kind, find_quantities

# Prefixes of the quantities of a device, by family of signals; for servos by signal.
_STEMS = {"angular_velocity": "gyro_", "acceleration": "accel_"}
_SERVO = {"joint_velocity": "velocity_", "joint_current": "current_"}


@dataclass(frozen=True, kw_only=True)
class SensorRemedy:
    """Change of one twin parameter that would remove the difference between real and simulated readings.

    Attributes:
        parameter: Name of the parameter.
        value: New value in SI units; NaN if it must be fitted.
        remark: Remark on the change, else "".
    """

    parameter: str
    value: float
    remark: str = ""


def find_remedy(
    channel: str, quantity: str, *, real: float, sim: float, hz: float, nominal: Mapping[str, float]
) -> SensorRemedy | None:
    """Return the parameter to change if a metric of a channel differs; None if no parameter of a twin affects it.

    The noise parameter σ of a sensor changes by σ_new² = σ_old² + (real² − sim²)/g². The metrics ``real`` and ``sim``
    are measured in the upper half of the frequency band, and g² is the part of white noise's power that the sensor's
    low-pass passes there. The noise parameter of an IMU is a density (N of IEEE 952, see `sensors.imu`): σ divided by
    the square root of the rate.

    Args:
        channel: Name of the simulated channel.
        quantity: Metric: ``noise``, ``step``, ``lag`` or ``jitter``.
        real: Metric of the real channel, in SI units.
        sim: Metric of the simulated channel, in SI units.
        hz: Samples per second of the simulated channel.
        nominal: Parameter values of the simulation, by name; empty if no twin was given.
    """
    family, _, column = channel.rpartition("/")
    kind, _, device = family.partition("/")
    if quantity == "lag" and kind == "position":
        return _remedy_lag(column, real, sim, nominal)
    if quantity == "jitter":
        return SensorRemedy(
            parameter="timing/control/jitter", value=math.nan, remark="try values until the jitter agrees"
        )
    name = (
        _find_servo_parameter(kind, quantity, nominal)
        if kind in _SERVO
        else _find_parameter(kind, device, column, quantity)
    )
    if name is None or (nominal and name not in nominal):
        return None
    if quantity == "step":
        return SensorRemedy(parameter=name, value=real)
    over = math.sqrt(hz) if kind in _STEMS else 1.0
    before = nominal.get(name, 0.0) * over
    bandwidth = nominal.get(f"sensor/{device}/bandwidth", 0.0) if kind in _STEMS else 0.0
    square = before**2 + (real**2 - sim**2) / _passed_power(bandwidth, hz)
    if square < 0:
        return SensorRemedy(parameter=name, value=0.0, remark="the simulation is too noisy even without it")
    return SensorRemedy(parameter=name, value=math.sqrt(square) / over)


def _remedy_lag(joint: str, real: float, sim: float, nominal: Mapping[str, float]) -> SensorRemedy:
    """Return the parameter change that removes the difference of a joint's lag.

    It is a change of the delay of the readings. A delay of the actuator has the same effect; only their sum is
    observed.

    Args:
        joint: Name of the joint.
        real: Lag of the real joint in s.
        sim: Lag of the simulated joint in s.
        nominal: Parameter values of the simulation, by name.
    """
    name = "timing/readings/delay"
    value = nominal.get(name, 0.0) + real - sim
    remark = f"or actuator/{joint}/delay, stiffness and damping: identify separates them"
    return SensorRemedy(parameter=name, value=value if value >= 0 else math.nan, remark=remark)


def _passed_power(bandwidth: float, hz: float) -> float:
    """Return the part of white noise's power that a sampled low-pass passes between 1/4 and 1/2 of the sampling rate.

    This is |H|² of the filter y = a y + (1 − a) n of `sensors.filters.low_pass_noise`, averaged over the band.

    Args:
        bandwidth: Bandwidth of the low-pass in Hz; 0 for none.
        hz: Sampling rate.
    """
    if bandwidth <= 0:
        return 1.0
    decay = math.exp(-2 * math.pi * bandwidth / hz)
    turns = np.linspace(np.pi / 2, np.pi, 64)
    return float(np.mean((1 - decay) ** 2 / (1 - 2 * decay * np.cos(turns) + decay**2)))


def _find_servo_parameter(kind: str, quantity: str, nominal: Mapping[str, float]) -> str | None:
    """Return the parameter of the servos' feedback that affects a metric; None if the twin has none.

    The name of a servo signal does not contain the device. It is not needed, because a twin has only one servo
    feedback.

    Args:
        kind: Signal, ``joint_velocity`` or ``joint_current``.
        quantity: Metric, such as ``noise``.
        nominal: Parameter values of the simulation, by name.
    """
    wanted = find_quantities("sensor", f"{_SERVO[kind]}{quantity}")
    return next((name for name in nominal if find_kind(name) in wanted), None)


def _find_parameter(kind: str, device: str, column: str, quantity: str) -> str | None:
    """Return the twin's parameter that sets the noise or resolution of a channel ``kind/device/column``.

    ``quantity`` is the metric, ``noise`` or ``step`` (the resolution). Returns None for other metrics or channels.
    """
    if quantity not in ("noise", "step"):
        return None
    if kind == "position":
        return f"sensor/{column}/{'resolution' if quantity == 'step' else 'noise'}"
    if kind in _STEMS:
        return f"sensor/{device}/{_STEMS[kind]}{quantity}"
    if kind == "wrench":  # columns are force.x … torque.z; counts are the same on all axes
        what, _, axis = column.partition(".")
        return f"sensor/{device}/{what}_step" if quantity == "step" else f"sensor/{device}/{what}_noise_{axis}"
    return None


Array = NDArray[np.float64]

# Probability of any false alarm among all metrics together.
ALPHA = 0.05
# Compared metrics, and the unit of each ("" is the channel's unit).
QUANTITIES = {"noise": "", "lag": "s", "period": "s", "jitter": "s", "missing": "1", "repeated": "1"}
_LEAST_EPISODES = 3  # of each: two give a spread with one degree of freedom, whose t is 12.7 at 95 %
_ROUNDING = 1e-9  # of a value: more than the rounding error of sums of doubles, far below any sensor's resolution
_OCTAVES = 5  # bands below the highest frequency


@dataclass(frozen=True, kw_only=True)
class SensorDifference(JsonRecord):
    """Comparison of one metric of one channel between the real and the simulated log.

    Attributes:
        channel: Name of the real channel.
        quantity: Metric, a key of `QUANTITIES`, or ``step`` (the resolution).
        unit: Unit of the metric.
        real: Mean over the real episodes.
        sim: Mean over the simulated episodes.
        p_value: P-value adjusted by Holm's method over all metrics of all channels; NaN if the metric was not tested.
        reason: Reason why the metric was not tested, else "".
        difference: Real − simulated with its interval.
        remedy: Parameter to change if the difference is significant; None if there is none.
    """

    json_also = ("differs",)

    channel: str
    quantity: str
    unit: str
    real: float
    sim: float
    p_value: float
    reason: str = ""
    difference: Interval
    remedy: SensorRemedy | None = None

    @property
    def differs(self) -> bool:
        """Whether the difference is significant: the adjusted p-value is at most 0.05."""
        return self.p_value <= ALPHA


@dataclass(frozen=True, kw_only=True)
class BandDifference(JsonRecord):
    """Difference between the spectra of real and simulated readings in one octave.

    Attributes:
        channel: Name of the real channel.
        low: Lower limit of the octave in Hz.
        high: Upper limit of the octave in Hz.
        p_value: P-value adjusted by Holm's method over the octaves of a channel.
        level: Real minus simulated level of the power spectral density in dB.
    """

    json_names: ClassVar[Mapping[str, str | None]] = {"low": "low_hz", "high": "high_hz", "level": "level_db"}

    channel: str
    low: float
    high: float
    p_value: float
    level: Interval


@dataclass(frozen=True, kw_only=True)
class SensorGap:
    """Differences between the sensors of a real and a simulated log.

    Attributes:
        differences: Comparison of every metric of every channel.
        bands: Comparison of the spectra by octave.
        metrics: Real and simulated metrics of each channel by episode, for plots.
        units: Unit of each channel.
        episodes: Number of real and of simulated episodes.
        missing_channels: Names of the real channels that the simulated log does not have.
    """

    differences: tuple[SensorDifference, ...]
    bands: tuple[BandDifference, ...]
    metrics: Mapping[str, tuple[EpisodeMetrics, EpisodeMetrics]]
    units: Mapping[str, str]
    episodes: tuple[int, int]
    missing_channels: tuple[str, ...] = ()

    @property
    def significant_differences(self) -> tuple[SensorDifference, ...]:
        """Differences whose adjusted p-value is significant, the smallest p-value first."""
        return tuple(sorted((row for row in self.differences if row.differs), key=lambda row: row.p_value))

    def headline(self) -> list[HeadlineMetric]:
        """Return the metrics for reports and ``--fail-if``: the share of metrics that differ, then every difference."""
        tested = [row for row in self.differences if not math.isnan(row.p_value)]
        share = len(self.significant_differences) / len(tested) if tested else math.nan
        rows = [
            HeadlineMetric(
                name="sensors_differ",
                estimate=share,
                method=f"Welch's tests with Holm's correction at {ALPHA:g}",
                meaning=f"part of {len(tested)} sensor metrics that differ beyond chance",
            )
        ]
        rows += [
            row.difference.headline(
                f"{row.quantity}/{row.channel}",
                unit=row.unit,
                meaning=f"{row.quantity} of the real readings minus that of the simulated ones",
            )
            for row in tested
        ]
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 1)."""
        return {
            "schema": 1,
            "episodes": {"real": self.episodes[0], "sim": self.episodes[1]},
            "differences": [row.to_json() for row in self.differences],
            "bands": [row.to_json() for row in self.bands],
            "lacking": list(self.missing_channels),
        }


def measure_sensors(
    real: Sequence[Episode],
    sim: Sequence[Episode],
    *,
    same: Mapping[str, str] | None = None,
    nominal: Mapping[str, float] | None = None,
    level: float = 0.95,
) -> SensorGap:
    """Compare the readings of a real log with the readings of a simulated log.

    The episode is the unit: every metric is computed per episode. Means over episodes are compared by Welch's test,
    with Holm's correction over all metrics of all channels.

    Args:
        real: Episodes of the real log.
        sim: Episodes of the simulated log; not necessarily the same motions, but similar ones.
        same: Simulated name of a real signal if they differ, see `match_channels`.
        nominal: Values of the twin's parameters in the simulated log, by name, for the remedies.
        level: Confidence level of the intervals.

    Raises:
        LogError: If either log has fewer than three episodes, or the logs have no channel in common.
        UnitsError: If a channel has different units in the two logs.
    """
    for name, log in (("real", real), ("simulated", sim)):
        if len(log) < _LEAST_EPISODES:
            raise LogError(
                f"The {name} log has {len(log)} episode{'' if len(log) == 1 else 's'}; a comparison of sensors needs "
                f"at least {_LEAST_EPISODES} of each. Record more, or cut a long recording into episodes."
            )
    pairs, missing_channels = match_channels(real, sim, same or {})
    nominal = nominal or {}
    metrics: dict[str, tuple[EpisodeMetrics, EpisodeMetrics]] = {}
    rows: list[SensorDifference] = []
    bands: list[BandDifference] = []
    for ours, theirs in pairs:
        highest = 0.5 * min(sampling_rate(ours), sampling_rate(theirs))
        if math.isnan(highest):
            raise LogError(f"No episode has enough readings of {ours.name} in both logs. Give longer episodes.")
        both = compute_episode_metrics(ours, highest=highest), compute_episode_metrics(theirs, highest=highest)
        metrics[ours.name] = both
        rows += [
            *_compare_metrics(ours, theirs.name, both, nominal, level),
            _compare_steps(ours, theirs, both, nominal, level),
        ]
        bands += _compare_bands(ours, both, highest, level)
    return SensorGap(
        differences=tuple(_correct_p_values(rows)),
        bands=tuple(bands),
        metrics=metrics,
        units={ours.name: ours.unit for ours, _ in pairs},
        episodes=(len(real), len(sim)),
        missing_channels=tuple(missing_channels),
    )


def _compare_metrics(
    channel: SensorChannel,
    simulated: str,
    both: tuple[EpisodeMetrics, EpisodeMetrics],
    nominal: Mapping[str, float],
    level: float,
) -> list[SensorDifference]:
    rows = []
    for quantity, unit in QUANTITIES.items():
        first, second = (metrics.values[quantity] for metrics in both)
        first, second = first[np.isfinite(first)], second[np.isfinite(second)]
        means = [float(values.mean()) if len(values) else math.nan for values in (first, second)]
        shared: dict[str, Any] = {"channel": channel.name, "quantity": quantity, "unit": unit or channel.unit}
        if min(len(first), len(second)) < _LEAST_EPISODES:
            if quantity == "lag" and channel.reference[0] is None:
                continue  # the channel follows no leader
            reason = f"{len(first)} real and {len(second)} simulated episodes have it; {_LEAST_EPISODES} are needed"
            nothing = Interval.of(math.nan, math.nan, math.nan, level=level, method=reason)
            rows.append(
                SensorDifference(
                    **shared, real=means[0], sim=means[1], difference=nothing, p_value=math.nan, reason=reason
                )
            )
            continue
        test = welch_test(first, second, level=level)
        if np.ptp(np.concatenate([first, second])) <= _ROUNDING * np.abs(means).max():
            test = replace(test, p_value=np.array(1.0))  # all equal: the rest is rounding error
        rows.append(
            SensorDifference(
                **shared,
                real=means[0],
                sim=means[1],
                difference=test.difference,
                p_value=float(test.p_value),
                remedy=find_remedy(simulated, quantity, real=means[0], sim=means[1], hz=both[1].hz, nominal=nominal),
            )
        )
    return rows


def _compare_steps(
    ours: SensorChannel,
    theirs: SensorChannel,
    both: tuple[EpisodeMetrics, EpisodeMetrics],
    nominal: Mapping[str, float],
    level: float,
) -> SensorDifference:
    """Compare the resolution (size of one count) of both logs.

    The resolution has no random error, so the p-value is 0 or 1. If only one log has a visible resolution, the logs
    differ if readings of the other log are not multiples of this resolution.

    Args:
        ours: Real channel.
        theirs: Simulated channel.
        both: Metrics of the real and the simulated channel.
        nominal: Parameter values of the simulation, by name.
        level: Confidence level of the result.
    """
    real, sim = (metrics.step for metrics in both)
    if real and sim:
        alike = math.isclose(real, sim, rel_tol=0.01)  # the accuracy of steps in float32 columns
    elif real or sim:
        alike = is_on_grid(np.concatenate((theirs if real else ours).values), real or sim)
    else:
        alike = True
    estimate = 0.0 if alike else real - sim
    return SensorDifference(
        channel=ours.name,
        quantity="step",
        unit=ours.unit,
        real=real,
        sim=sim,
        difference=Interval.of(estimate, estimate, estimate, level=level, method="exact, not estimated"),
        p_value=1.0 if alike else 0.0,
        remedy=find_remedy(theirs.name, "step", real=real, sim=sim, hz=both[1].hz, nominal=nominal),
        reason="" if real or sim else "neither log shows counts",
    )


def _correct_p_values(rows: Sequence[SensorDifference]) -> list[SensorDifference]:
    """Return the differences with p-values adjusted by Holm's method; insignificant differences get no remedy."""
    tested = [i for i, row in enumerate(rows) if not math.isnan(row.p_value)]
    adjusted = dict(zip(tested, holm([rows[i].p_value for i in tested]) if tested else [], strict=True))
    made = [replace(row, p_value=float(adjusted.get(i, math.nan))) for i, row in enumerate(rows)]
    return [row if row.differs else replace(row, remedy=None) for row in made]


def _compare_bands(
    channel: SensorChannel, both: tuple[EpisodeMetrics, EpisodeMetrics], highest: float, level: float
) -> list[BandDifference]:
    """Compare the levels in dB of the real and the simulated spectra in the octaves below ``highest``.

    Returns an empty list if fewer than three episodes of either log have a spectrum.

    Args:
        channel: The channel.
        both: Metrics of the real and the simulated channel.
        highest: Upper limit of the highest octave in Hz.
        level: Confidence level of the intervals.
    """
    edges = octave_edges(highest / 2.0**_OCTAVES, highest)
    levels = [
        np.array([_compute_levels(found, edges) for found in metrics.spectra if found is not None]) for metrics in both
    ]
    if min(len(table) for table in levels) < _LEAST_EPISODES:
        return []
    known = np.isfinite(np.concatenate(levels)).all(axis=0)
    if not known.any():
        return []
    test = welch_test(levels[0][:, known], levels[1][:, known], level=level)
    adjusted = holm(test.p_value)
    return [
        BandDifference(
            channel=channel.name,
            low=float(edges[band]),
            high=float(edges[band + 1]),
            level=test.difference.at(place),
            p_value=float(adjusted[place]),
        )
        for place, band in enumerate(np.flatnonzero(known))
    ]


def _compute_levels(found: Spectrum, edges: Array) -> list[float]:
    """Return the levels of one episode's spectrum in the bands between ``edges`` (Hz), in dB.

    A band without power or without a frequency of the spectrum has NaN.
    """
    densities = [found.mean_density(low, high) for low, high in itertools.pairwise(edges)]
    return [10.0 * math.log10(value) if value > 0 else math.nan for value in densities]
