"""Probabilities from few rows, and from rows of one class: between 0 and 1, and better than none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.metrics import log_loss

from mercer import KernelClassifier
from mercer.estimators.targets import DEFAULT_LOGIT_SCALE, Labels, Unseen

TWO, THREE = Labels(np.array([0, 1])), Labels(np.arange(3))


def decisions(labels, y, sign=1.0):
    """Decisions that are right for labels y, or wrong for sign -1."""
    return sign * labels.encode(np.asarray(y))


@pytest.mark.parametrize("labels", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize("y", [[1], [1] * 5, [0, 1, 0, 1, 1], [0] * 40])
@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0, 1e-6, 30.0])
def test_no_probability_is_certain_after_few_rows(labels, y, sign):
    scale = labels.fit_logit_scale(Unseen(np.array(y), decisions(labels, y, sign)))
    columns = 1 if labels is TWO else 3
    f = np.zeros((200, columns))
    f[:, 0] = np.linspace(-1, 1, 200)  # as targets are
    p = labels.probabilities(f, scale)
    assert ((p > 1e-6) & (p < 1 - 1e-6)).all()
    np.testing.assert_allclose(p.sum(1), 1)
    rising = p[:, 1] if labels is TWO else p[:, 0]
    assert (np.diff(rising) > 0).all()


def test_flawless_rows_make_probabilities_surer_the_more_there_are():
    scales = [
        TWO.fit_logit_scale(Unseen(np.ones(m), decisions(TWO, np.ones(m)))) for m in (1, 5, 50, 5_000)
    ]
    assert scales == sorted(scales)
    assert 4 < scales[0] < 5  # a single row says nearly nothing
    assert expit(-scales[-1]) < 1e-3


@pytest.mark.parametrize("scale", [1.0, 4.0, 16.0])
def test_many_rows_decide_alone(rng, scale):
    f = rng.uniform(-1, 1, (20_000, 1))
    y = (rng.random(20_000) < expit(scale * f[:, 0])).astype(int)
    assert TWO.fit_logit_scale(Unseen(y, f)) == pytest.approx(scale, rel=0.06)


def test_a_row_of_weight_two_is_the_row_given_twice(rng):
    f, y = rng.normal(size=(12, 3)), rng.integers(0, 3, 12)
    twice = THREE.fit_logit_scale(Unseen(np.repeat(y, 2), np.repeat(f, 2, axis=0)))
    assert THREE.fit_logit_scale(Unseen(y, f, np.full(12, 2.0))) == pytest.approx(twice)


@pytest.fixture(scope="module")
def predicted():
    """Decisions of small models on rows that they were not trained on."""
    found = []
    for loader in (load_breast_cancer, load_wine, load_iris, load_digits):
        X, y = loader(return_X_y=True)
        order = np.random.default_rng(1).permutation(len(X))
        flip = np.random.default_rng(2).random(len(X)) < 0.15
        for labels in (y, np.where(flip, np.roll(y, 7), y)):
            train, rest = order[:60], order[60:]
            given = {"bandwidth": 5.0, "ridge": 0.1, "scale": True, "metric": False, "random_state": 0}
            model = KernelClassifier("laplacian", **given).fit(X[train], labels[train])
            found.append((model._targets, model._decision(X[rest]), labels[rest]))
    return found


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("m", [3, 5, 10])
def test_few_rows_are_better_than_none_on_real_tables(predicted, m, one_sided):
    """Log-loss on the other rows, over many draws of m calibration rows."""
    rng = np.random.default_rng(m)
    excess = []
    for labels, decision, y in predicted:
        before = log_loss(y, labels.probabilities(decision, DEFAULT_LOGIT_SCALE))
        for _ in range(10):
            pool = np.flatnonzero(y == rng.choice(y)) if one_sided else np.arange(len(y))
            rows = rng.choice(pool, min(m, len(pool)), replace=False)
            scale = labels.fit_logit_scale(Unseen(y[rows], decision[rows]))
            others = np.setdiff1d(np.arange(len(y)), rows)
            after = log_loss(y[others], labels.probabilities(decision[others], scale))
            excess.append(after - before)
    assert np.mean(excess) < 0
    assert np.max(excess) < 0.6
