"""Warnings after a fit: how training ended, and the notes of its plan."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from sklearn.exceptions import ConvergenceWarning

from mercer.training.events.dispatch import INTERRUPTED
from mercer.training.stopping import NOTHING_LEARNED, STALLED

# Frames from `warnings.warn` to the line that called `fit`: warn_after_fit, _fit, fit, that line.
CALL_OF_FIT = 4

REASONS = {
    INTERRUPTED: "Training was {reason} after {n_iter} whole epochs; the model has {kept}.",
    NOTHING_LEARNED: (
        "The model predicts the mean of the targets, because no epoch predicted better. The targets may "
        "not depend on the features, or the bandwidth or ridge may be far from what suits the data: "
        'leave them at "auto".'
    ),
    STALLED: (
        "Training stopped because its loss has almost stopped falling, above "
        "`interpolation_tol`={interpolation_tol:g}. The kernel matrix is ill-conditioned: a "
        "smaller bandwidth or a ridge helps; or raise `interpolation_tol` if the training loss in "
        "`history_` is low enough."
    ),
}
LIMIT_REACHED = (
    "Training stopped at `max_iter`={max_iter} before it converged. Raise `max_iter`, or raise "
    "`interpolation_tol` if the training loss in `history_` is low enough."
)


def warn_after_fit(
    reason: str,
    n_iter: int,
    notes: Sequence[str],
    *,
    converged: bool,
    max_iter: int,
    interpolation_tol: float,
) -> None:
    """Warn of training that did not converge, and of each note of the plan."""
    sentence = REASONS.get(reason)
    if sentence is None and not converged and n_iter >= max_iter:
        sentence = LIMIT_REACHED
    if sentence is not None:
        kept = "the best weights so far" if n_iter else "the weights as they were"
        text = sentence.format(
            reason=reason,
            n_iter=n_iter,
            kept=kept,
            max_iter=max_iter,
            interpolation_tol=interpolation_tol,
        )
        warnings.warn(text, ConvergenceWarning, stacklevel=CALL_OF_FIT)
    for note in notes:
        warnings.warn(f"{note[0].upper()}{note[1:]}.", UserWarning, stacklevel=CALL_OF_FIT)
