"""Prepare trials for a gate: pair candidate and champion, in an order that allows looks while trials are added."""

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
    """One trial; ``won`` is true if it is valid and succeeded. Values that were not measured are None."""

    key: Key
    won: bool
    progress: float | None
    violations: int | None
    latency_s: float | None
    valid: bool
    reason: str

    @property
    def slice(self) -> str:
        """Name of its suite and its slice, ``SUITE/SLICE``."""
        return f"{self.key[1]}/{self.key[2]}"


@dataclass(frozen=True, kw_only=True)
class GateEvidence:
    """All trials of both policies, in the order in which they were made."""

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
        """Read evaluations and check that they are evidence about these two policies.

        A manual table of trials on a robot has no hash; it is identified by the policy's name in ``names``.
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
        self, suites: Sequence[str] | None, domain: str | None, without: Sequence[str]
    ) -> list[tuple[EvidenceTrial, EvidenceTrial]]:
        """Return the trials of both policies with the same key, in the candidate's order."""
        partners = {trial.key: trial for trial in self.champion}
        chosen = select_trials(self.candidate, suites, domain, without)
        return [(trial, partners[trial.key]) for trial in chosen if trial.key in partners]

    def select_robot_trials(self, suites: Sequence[str], without: Sequence[str]) -> GateEvidence:
        """Return the evidence of robot trials only: domain ``real``, or one of ``suites``, run on a virtual robot."""
        mine, theirs = (
            tuple(
                trial
                for trial in select_trials(side, None, None, without)
                if trial.key[0] == "real" or trial.key[1] in suites
            )
            for side in (self.candidate, self.champion)
        )
        return replace(self, candidate=mine, champion=theirs)


def select_trials(
    trials: Sequence[EvidenceTrial], suites: Sequence[str] | None, domain: str | None, without: Sequence[str]
) -> list[EvidenceTrial]:
    """Return the trials of ``suites`` (None: of all suites except ``without``) in ``domain`` (None: in any)."""
    return [
        trial
        for trial in trials
        if (trial.key[1] in suites if suites is not None else trial.key[1] not in without)
        and domain in (None, trial.key[0])
    ]


def interleave_slices(slices: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return an order of trials in which every slice has an equal share at every look, and the looks.

    The order is the first trial of each slice, then the second of each, and so on. Trials that are added to the slices
    later therefore come at the end. If all slices have the same number of trials, there is a look after each round.
    Else there is one look, at the end, because an average over slices needs equal shares.

    Returns:
        Positions ``(n,)`` in that order, and the number of trials at each look.
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
    """Return a problem for each evaluation of a policy other than the given one."""
    return [
        f"an evaluation in {one.suite} given for the {side} is of {one.policy} ({one.policy_hash[:12] or 'no hash'}), "
        f"but the {side} has the hash {policy[:12]}"
        + ("" if one.policy_hash else f"; if it is of the {side}, write the policy as {name}")
        for one in evaluations
        if policy and one.policy_hash != policy and (one.policy_hash or one.policy != name)
    ]


def _find_setting_differences(candidate: Sequence[Evaluation], champion: Sequence[Evaluation]) -> list[str]:
    """Return a problem for evaluations of one suite with different settings, whose trials are no pairs."""
    found = list[str]()
    for mine, theirs in itertools.product(candidate, champion):
        if (mine.suite, mine.domain) == (theirs.suite, theirs.domain):
            other = [word for name, word in _ALIKE.items() if getattr(mine, name) != getattr(theirs, name)]
            if mine.extra.get("suite_hash") != theirs.extra.get("suite_hash"):
                other.append("version of the suite")
            if other:
                found.append(f"in {mine.suite} the two were run with a different {' and '.join(other)}")
    return found


def _find_unpaired_trials(mine: Sequence[EvidenceTrial], theirs: Sequence[EvidenceTrial]) -> list[str]:
    """Return a problem for trials that only one of both policies has."""
    here, there = {trial.key for trial in mine}, {trial.key for trial in theirs}
    return [
        f"{len(missing)} trials have no partner by the {side} ({_format_keys(sorted(missing))})"
        for side, missing in (("champion", here - there), ("candidate", there - here))
        if missing
    ]


def _format_keys(keys: Sequence[Key]) -> str:
    shown = [f"{suite}/{part}/{trial}" for _, suite, part, trial in keys[:_SHOWN]]
    return ", ".join(shown) + (", …" if len(keys) > _SHOWN else "")
