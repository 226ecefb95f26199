"""What a panel sees of the weights while training visits it."""

from __future__ import annotations


def visible_weights(visit, epoch, weights, s):
    """Rows of a visit, the weights that are not yet zero then, and where those end.

    In the first epoch, these are the weights of the panels visited so far and of the subsample.
    """
    stop = max(visit.panel.stop, s) if epoch == 1 else len(weights)
    seen = weights.clone()
    seen[stop:] = 0
    return visit.panel.rows, seen, stop
