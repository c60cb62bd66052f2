"""Nested cross-validation: inner folds of a training part choose the candidate, the outer fold scores it once.

No choice depends on the held-out episodes of an outer fold, because `choose` gets only the training part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.real_data.case import Array, Candidate, Constant, Errors, Fitted, Fold, RealCase
from twinloop.core.files import sha256_bytes
from twinloop.core.records import Episode
from twinloop.simulate import Backend
from twinloop.stats import Interval, bootstrap


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The candidate with the smallest loss, and each candidate's mean loss over the inner folds, by name.

    A loss is the largest ratio over metrics of the error to that of the nominal twin on the same episodes. So a good
    metric cannot compensate for a bad one.
    """

    candidate: Candidate
    losses: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class FoldResult:
    """A scored outer fold: errors of the fit and of each reference on the same units."""

    fold: Fold
    choice: Choice
    fitted: Fitted
    errors: Errors
    references: Mapping[str, Errors]
    constants: Sequence[Constant]

    def difference(self, reference: str) -> Interval | None:
        """Return the fit's metrics minus a reference's, with a paired 95 % bootstrap interval; None for one unit."""
        return paired_difference(self.errors, self.references[reference])


class Fits:
    """Cache of the fits of one case, with one fit per structure and set of episodes, in any order."""

    def __init__(self, case: RealCase, backend: Backend) -> None:
        self.case, self.backend = case, backend
        self._made: dict[tuple[str, frozenset[str]], Fitted] = {}

    def __call__(self, training: Sequence[Episode], candidate: Candidate) -> Fitted:
        """Return the candidate's fit to the episodes."""
        key = (candidate.structure, frozenset(map(content, training)))
        if key not in self._made:
            self._made[key] = self.case.fit(training, candidate.structure, self.backend)
        return replace(self._made[key], prediction=candidate.prediction)

    def errors(self, fitted: Fitted, test: Sequence[Episode]) -> Errors:
        """See `RealCase`."""
        return self.case.errors(fitted, test, self.backend)


def choose(training: Sequence[Episode], fits: Fits) -> Choice:
    """Choose among the case's candidates by inner folds of a training part."""
    candidates, folds = fits.case.candidates, fits.case.inner_folds(training)
    if len(candidates) == 1 or not folds:
        return Choice(candidate=candidates[0], losses={})
    losses = np.array([_losses(fold, fits) for fold in folds]).mean(axis=0)
    return Choice(
        candidate=candidates[int(np.argmin(losses))],
        losses={candidate.name: float(loss) for candidate, loss in zip(candidates, losses, strict=True)},
    )


def _losses(fold: Fold, fits: Fits) -> Array:
    """Return every candidate's loss on an inner fold."""
    shipped = fits.errors(Fitted(), fold.test).metrics
    found = [fits.errors(fits(fold.training, candidate), fold.test).metrics for candidate in fits.case.candidates]
    return np.max(np.array(found) / shipped, axis=1)


def run_fold(fold: Fold, fits: Fits) -> FoldResult:
    """Choose and fit on a fold's training part, and score on its test part."""
    choice = choose(fold.training, fits)
    fitted = fits(fold.training, choice.candidate)
    errors = fits.errors(fitted, fold.test)
    references = {name: fits.errors(known, fold.test) for name, known in fits.case.references(fold.training).items()}
    return FoldResult(
        fold=fold,
        choice=choice,
        fitted=fitted,
        errors=errors,
        references=references,
        constants=fits.case.constants(fitted),
    )


def paired_difference(after: Errors, before: Errors) -> Interval | None:
    """Return the metrics of ``after`` minus those of ``before`` on the same units; None if there is one unit."""
    if len(after.values) == 1:
        return None
    return bootstrap(lambda rows: after.at(rows) - before.at(rows), len(after.values), method="percentile")


def content(episode: Episode) -> str:
    """Return a hash of an episode's arrays; it does not depend on the episode's name or number."""
    arrays = [episode.time, episode.action, episode.state]
    arrays += [signal.values for _, signal in sorted(episode.signals.items())]
    return sha256_bytes(*(values.tobytes() for values in arrays))
