"""Which figures each command that measures can tell: what a condition may name, known before the work begins."""

from __future__ import annotations

from collections.abc import Mapping

_WHY = ("unexplained", "unexplained/*", "share/*")
_NEAR = ("recall", "coverage", "precision", "density")
_SCORES = (
    "pearson",
    "spearman",
    "kendall",
    "mmrv",
    "pairwise_accuracy",
    "best_agrees",
    "regret",
    "bias",
    "absolute_gap",
)


def _and_each(*names: str) -> tuple[str, ...]:
    """A figure of all together, and of each joint, task or policy."""
    return (*names, *(f"{name}/*" for name in names))


# By verb and kind; * stands for what the data say: a joint, a task, a policy, a signal.
_FIGURES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("gap", "dynamics"): (*_and_each("skill", "gap_ratio"), "nrmse", "rmse/*", "delay/*", *_WHY),
    ("gap", "why"): _WHY,
    ("gap", "sensors"): ("sensors_differ", "*/*"),
    ("gap", "vision"): ("mmd", "kid", "auc", "accuracy", *_NEAR, "difference/*"),
    ("gap", "data"): ("auc", "auc/*", "mmd", "energy", "coverage", "precision"),
    ("gap", "classes"): ("classes", "class/*"),
    ("gap", "policies"): (
        *_and_each("success_gap", "score_gap"),
        *(f"{measure}_{what}" for measure in ("success", "score") for what in ("largest", "conditions_differ")),
    ),
    ("gap", "predictivity"): ("best_policy", *_and_each(*_SCORES)),
    ("gap", "estimate"): ("real/*", "trials_saved/*"),
    ("gap", "compare"): _and_each("difference", "p_differs", "p_equivalent"),
    ("coverage", "reality"): (*_NEAR, "largest_hole"),
    ("scenario", "search"): ("failure_rate",),
    ("evidence", "claim"): ("trials", "watched_trials", "rate_shown", "more_without_failure", "bound"),
    ("compare", ""): ("difference", "p_value", "pairs"),
}


def figures_of(verb: str, kind: str) -> tuple[str, ...]:
    """The names that conditions on a command may have; none where only the command itself can tell.

    Args:
        verb: the command.
        kind: the word after it, or what was asked of it.
    """
    return _FIGURES.get((verb, kind)) or _FIGURES.get((verb, ""), ())
