"""Nested cross-validation: inner folds of a training part choose the candidate, the outer fold scores it once.

No choice depends on what an outer fold leaves out: `choose` sees the training part alone.
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
    """The candidate with the least loss, and the mean loss of each over the inner folds, by name.

    A loss is the largest over figures of the error relative to that of the twin as shipped on the same episodes, so
    that no figure pays for another.
    """

    candidate: Candidate
    losses: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class FoldResult:
    """An outer fold, scored: errors of the fit and of each reference on the same units."""

    fold: Fold
    choice: Choice
    fitted: Fitted
    errors: Errors
    references: Mapping[str, Errors]
    constants: Sequence[Constant]

    def difference(self, reference: str) -> Interval | None:
        """The fit's figures minus a reference's, with a paired 95 % bootstrap interval over units; None for one."""
        return paired_difference(self.errors, self.references[reference])


class Fits:
    """Fits of one case, each made once for a structure and a set of episodes, whatever their order."""

    def __init__(self, case: RealCase, backend: Backend) -> None:
        self.case, self.backend = case, backend
        self._made: dict[tuple[str, frozenset[str]], Fitted] = {}

    def __call__(self, training: Sequence[Episode], candidate: Candidate) -> Fitted:
        """The candidate's fit to the episodes."""
        key = (candidate.structure, frozenset(map(content, training)))
        if key not in self._made:
            self._made[key] = self.case.fit(training, candidate.structure, self.backend)
        return replace(self._made[key], prediction=candidate.prediction)

    def errors(self, fitted: Fitted, test: Sequence[Episode]) -> Errors:
        """See `RealCase`."""
        return self.case.errors(fitted, test, self.backend)


def choose(training: Sequence[Episode], fits: Fits) -> Choice:
    """Choose among the case's candidates by the inner folds of a training part."""
    candidates, folds = fits.case.candidates, fits.case.inner_folds(training)
    if len(candidates) == 1 or not folds:
        return Choice(candidate=candidates[0], losses={})
    losses = np.array([_losses(fold, fits) for fold in folds]).mean(axis=0)
    return Choice(
        candidate=candidates[int(np.argmin(losses))],
        losses={candidate.name: float(loss) for candidate, loss in zip(candidates, losses, strict=True)},
    )


def _losses(fold: Fold, fits: Fits) -> Array:
    """Every candidate's loss on an inner fold."""
    shipped = fits.errors(Fitted(), fold.test).figures
    found = [fits.errors(fits(fold.training, candidate), fold.test).figures for candidate in fits.case.candidates]
    return np.max(np.array(found) / shipped, axis=1)


def run_fold(fold: Fold, fits: Fits) -> FoldResult:
    """Choose and fit on a fold's training part; score on its test part."""
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
    """Figures of ``after`` minus those of ``before`` on the same units; None for one unit."""
    if len(after.values) == 1:
        return None
    return bootstrap(lambda rows: after.at(rows) - before.at(rows), len(after.values), method="percentile")


def content(episode: Episode) -> str:
    """A hash of an episode's arrays, the same whatever the episode is called."""
    arrays = [episode.time, episode.action, episode.state]
    arrays += [signal.values for _, signal in sorted(episode.signals.items())]
    return sha256_bytes(*(values.tobytes() for values in arrays))
