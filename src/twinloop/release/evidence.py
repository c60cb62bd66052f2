"""Collect trials for a gate: pair the trials of candidate and champion, and order them for repeated evaluation."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.evaluation import Evaluation

Key = tuple[str, str, str, str]  # domain, suite, slice, trial
_SHOWN = 3
_ALIKE = {"task": "task", "twin_hash": "twin", "run_seed": "run seed"}


@dataclass(frozen=True, kw_only=True)
class EvidenceTrial:
    """One trial of a policy; a value that was not measured is None.

    Attributes:
        key: domain (``sim`` or ``real``), suite, evaluation slice (condition of the suite) and trial. Trials of two
            policies with the same key are a pair.
        won: whether the trial is valid and succeeded.
        progress: progress in the task, 0 to 1.
        violations: number of control steps at which a safety limit was broken.
        latency_s: mean time per command in s.
        valid: whether the trial is valid; a trial in a world that diverged is not.
        reason: reason why the trial is not valid; empty if it is.
    """

    key: Key
    won: bool
    progress: float | None
    violations: int | None
    latency_s: float | None
    valid: bool
    reason: str

    @property
    def slice(self) -> str:
        """Name of the trial's suite and evaluation slice (condition of the suite), ``SUITE/SLICE``."""
        return f"{self.key[1]}/{self.key[2]}"


@dataclass(frozen=True, kw_only=True)
class GateEvidence:
    """All trials of candidate and champion, each in the order in which they were made.

    Attributes:
        candidate: trials of the candidate.
        champion: trials of the champion; empty if there is no champion.
        hashes: hashes of the evaluations.
        problems: sentences about trials that do not fit together; the gate is then not passed.
    """

    candidate: tuple[EvidenceTrial, ...]
    champion: tuple[EvidenceTrial, ...] = ()
    hashes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        candidate: Sequence[Evaluation],
        champion: Sequence[Evaluation],
        *,
        candidate_hash: str = "",
        champion_hash: str = "",
        names: tuple[str, str | None] = ("", None),
    ) -> GateEvidence:
        """Read the trials of evaluations, and check that the trials are from these two policies and can be paired.

        Args:
            candidate: evaluations of the candidate.
            champion: evaluations of the champion.
            candidate_hash: hash of the candidate; empty skips the check of its policy.
            champion_hash: hash of the champion; empty skips the check of its policy.
            names: names of candidate and champion. They identify an evaluation that has no policy hash, for example a
                manual table of trials on a robot.
        """
        problems = [
            *_find_other_policies(candidate, candidate_hash, "candidate", names[0]),
            *_find_other_policies(champion, champion_hash, "champion", names[1]),
            *_find_setting_differences(candidate, champion),
        ]
        mine, theirs = (tuple(t for one in side for t in _read_trials(one)) for side in (candidate, champion))
        for side, trials in (("candidate", mine), ("champion", theirs)):
            twice = [key for key, count in Counter(trial.key for trial in trials).items() if count > 1]
            if twice:
                problems.append(f"{len(twice)} trials of the {side} occur in two evaluations ({_format_keys(twice)})")
        if champion:
            problems += _find_unpaired_trials(mine, theirs)
        hashes = tuple(one.hash for one in (*candidate, *champion))
        return cls(candidate=mine, champion=theirs, hashes=hashes, problems=tuple(problems))

    def pair_trials(
        self, suites: Sequence[str] | None, domain: str | None, exclude: Sequence[str]
    ) -> list[tuple[EvidenceTrial, EvidenceTrial]]:
        """Return pairs of trials of candidate and champion with the same key, in the candidate's order.

        Args:
            suites: names of the suites to use; None for all except ``exclude``.
            domain: domain of the trials to use; None for any.
            exclude: names of the suites to exclude if ``suites`` is None.
        """
        partners = {trial.key: trial for trial in self.champion}
        chosen = select_trials(self.candidate, suites, domain, exclude)
        return [(trial, partners[trial.key]) for trial in chosen if trial.key in partners]

    def select_robot_trials(self, suites: Sequence[str], exclude: Sequence[str]) -> GateEvidence:
        """Return the evidence with robot trials only: trials of the domain ``real``, and trials of the given suites.

        Args:
            suites: names of suites that were run on a virtual robot, whose trials count as robot trials.
            exclude: names of the suites to exclude.
        """
        mine, theirs = (
            tuple(
                trial
                for trial in select_trials(side, None, None, exclude)
                if trial.key[0] == "real" or trial.key[1] in suites
            )
            for side in (self.candidate, self.champion)
        )
        return replace(self, candidate=mine, champion=theirs)


def select_trials(
    trials: Sequence[EvidenceTrial], suites: Sequence[str] | None, domain: str | None, exclude: Sequence[str]
) -> list[EvidenceTrial]:
    """Return the trials of some suites in one domain.

    Args:
        suites: names of the suites to use; None for all except ``exclude``.
        domain: domain of the trials to use; None for any.
        exclude: names of the suites to exclude if ``suites`` is None.
    """
    return [
        trial
        for trial in trials
        if (trial.key[1] in suites if suites is not None else trial.key[1] not in exclude)
        and domain in (None, trial.key[0])
    ]


def interleave_slices(slices: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return an order of trials in which all evaluation slices have equal shares, and the times at which to test.

    A slice is one condition of a suite. The order is the first trial of each slice, then the second trial of each
    slice, and so on. Trials that are added to the slices later therefore come at the end. If all slices have the same
    number of trials, a test is made after each such round. Otherwise one test is made at the end, because an average
    over slices needs equal shares.

    Args:
        slices: name of the slice of each of n trials.

    Returns:
        Indices of the trials in the new order, shape ``(n,)``, and the number of trials at each test, shape
        ``(nlook,)``.
    """
    count: Counter[str] = Counter()
    rounds = np.empty(len(slices), dtype=np.intp)
    for at, name in enumerate(slices):
        rounds[at] = count[name]
        count[name] += 1
    order = np.argsort(rounds, kind="stable")
    even = len(set(count.values())) == 1
    looks = np.arange(len(count), len(slices) + 1, len(count)) if even else np.array([len(slices)])
    return order, looks.astype(np.intp)


def _read_trials(evaluation: Evaluation) -> list[EvidenceTrial]:
    return [
        EvidenceTrial(
            key=(evaluation.domain, evaluation.suite, row["slice"], row["trial"]),
            won=bool(row["success"] and row["valid"]),
            progress=row["progress"],
            violations=row["violations"],
            latency_s=row["latency_s"],
            valid=row["valid"],
            reason=row["reason"] or "",
        )
        for row in evaluation.trials.to_pylist()
    ]


def _find_other_policies(evaluations: Sequence[Evaluation], policy: str, side: str, name: str | None) -> list[str]:
    """Return a problem, as a sentence, for each evaluation of another policy than the given one.

    Args:
        policy: expected hash of the policy; empty skips the check.
        side: ``candidate`` or ``champion``, for the sentence.
        name: expected name of the policy in evaluations that have no policy hash.
    """
    return [
        f"an evaluation in {one.suite} given for the {side} is of {one.policy} ({one.policy_hash[:12] or 'no hash'}), "
        f"but the {side} has the hash {policy[:12]}"
        + ("" if one.policy_hash else f"; if it is of the {side}, write the policy as {name}")
        for one in evaluations
        if policy and one.policy_hash != policy and (one.policy_hash or one.policy != name)
    ]


def _find_setting_differences(candidate: Sequence[Evaluation], champion: Sequence[Evaluation]) -> list[str]:
    """Return a problem, as a sentence, for each suite that both policies ran with different settings.

    Trials with different settings cannot be paired.
    """
    found = list[str]()
    for mine, theirs in itertools.product(candidate, champion):
        if (mine.suite, mine.domain) == (theirs.suite, theirs.domain):
            other = [word for name, word in _ALIKE.items() if getattr(mine, name) != getattr(theirs, name)]
            if mine.extra.get("suite_hash") != theirs.extra.get("suite_hash"):
                other.append("version of the suite")
            if other:
                found.append(f"in {mine.suite}, candidate and champion were run with a different {' and '.join(other)}")
    return found


def _find_unpaired_trials(mine: Sequence[EvidenceTrial], theirs: Sequence[EvidenceTrial]) -> list[str]:
    """Return a problem, as a sentence, for trials that only the candidate or only the champion has.

    Args:
        mine: trials of the candidate.
        theirs: trials of the champion.
    """
    here, there = {trial.key for trial in mine}, {trial.key for trial in theirs}
    return [
        f"{len(missing)} trials have no partner: the {side} has no trials with the same suite, slice and number "
        f"({_format_keys(sorted(missing))})"
        for side, missing in (("champion", here - there), ("candidate", there - here))
        if missing
    ]


def _format_keys(keys: Sequence[Key]) -> str:
    shown = [f"{suite}/{part}/{trial}" for _, suite, part, trial in keys[:_SHOWN]]
    return ", ".join(shown) + (", …" if len(keys) > _SHOWN else "")
