"""Measures of predictions, against scikit-learn's, and what is shown of them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    log_loss,
    precision_recall_fscore_support,
    roc_auc_score,
)

from mercer.cli.printing import show
from mercer.cli.score_screen import score_lines
from mercer.metrics import class_places, measure
from mercer.report import Evaluation
from mercer.report.ranking import curves


@pytest.fixture
def two(rng):
    """Two classes, 2 % of one, with probabilities that know something; both are predicted."""
    y = np.where(rng.random(3000) < 0.02, "yes", "no")
    p = np.clip(rng.beta(1, 8, 3000) + 0.35 * (y == "yes"), 0.001, 0.999)
    return y, np.where(p > 0.5, "yes", "no"), np.column_stack([1 - p, p]), np.array(["no", "yes"])


def test_measures_of_probabilities_equal_those_of_scikit_learn(two):
    y, predicted, probabilities, classes = two
    found = measure("classification", y, predicted, probabilities, classes)
    truth, p = y == "yes", probabilities[:, 1]
    assert found.ranking.positive == "yes"
    assert found.ranking.auc == pytest.approx(roc_auc_score(truth, p))
    assert found.ranking.average_precision == pytest.approx(average_precision_score(truth, p))
    assert found.log_loss == pytest.approx(log_loss(y, probabilities))
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(y, predicted))


def test_recall_and_precision_of_each_class_equal_those_of_scikit_learn(two):
    y, predicted, probabilities, classes = two
    found = measure("classification", y, predicted, probabilities, classes)
    precision, recall, _, rows = precision_recall_fscore_support(y, predicted, labels=classes)
    assert [one.label for one in found.classes] == classes.tolist()
    assert [one.rows for one in found.classes] == rows.tolist()
    assert [one.recall for one in found.classes] == pytest.approx(recall)
    assert [one.precision for one in found.classes] == pytest.approx(precision)


def test_the_report_has_both_curves_of_the_rarer_of_two_classes(two, rng):
    y, predicted, probabilities, classes = two
    found = Evaluation(y, predicted, probabilities, np.arange(1, 3001), "a.csv")
    page, ranked = curves(classes, found), measure("classification", *two).ranking
    assert "ROC curve of yes" in page
    assert "Precision and recall of yes" in page
    assert f"(AUC) is {ranked.auc:.3f}" in page
    assert f"average precision is {ranked.average_precision:.3f}" in page
    three = np.array(["a", "b", "c"])
    labels, p = rng.choice(three, 60), rng.dirichlet(np.ones(3), 60)
    assert curves(three, Evaluation(labels, labels, p, np.arange(1, 61), "a.csv")) == ""


def test_many_classes_have_a_log_loss_and_no_ranking(rng):
    y, p = rng.integers(0, 4, 200), rng.dirichlet(np.ones(4), 200)
    found = measure("classification", y, p.argmax(1), p, np.arange(4))
    assert found.ranking is None
    assert found.log_loss == pytest.approx(log_loss(y, p))


def test_a_class_that_the_model_does_not_know_has_no_log_loss():
    p = np.full((3, 2), 0.5)
    found = measure("classification", np.array([0, 1, 2]), np.array([0, 1, 1]), p, np.arange(2))
    assert found.log_loss is None
    assert found.ranking is None


def test_labels_are_found_as_text_or_as_numbers():
    assert class_places(np.array([1, 2]), np.array(["2", "x"])).tolist() == [1, -1]
    assert class_places(np.array(["1", "2"]), np.array([2, 3])).tolist() == [1, -1]


def test_with_two_per_cent_of_a_class_the_headline_is_not_the_error(two, capsys):
    y, predicted, probabilities, classes = two
    show(*score_lines(measure("classification", y, predicted, probabilities, classes), "a.csv"))
    out = capsys.readouterr().out
    assert out.startswith("Balanced error ")
    assert "AUC 0.9" in out
    assert "for yes (" in out


def test_a_class_that_is_never_predicted_is_named(two, capsys):
    y, _, probabilities, classes = two
    found = measure("classification", y, np.full(len(y), "no"), probabilities, classes)
    assert found.balanced_accuracy == 0.5
    show(*score_lines(found, "a.csv"))
    out = capsys.readouterr().out
    assert out.startswith("Balanced error 50 %")
    assert f"Never predicted: yes ({(y == 'yes').sum()} rows)." in out


def test_classes_of_similar_size_have_the_error_as_headline(rng, capsys):
    y = rng.integers(0, 3, 300)
    show(*score_lines(measure("classification", y, np.roll(y, 1)), "a.csv"))
    assert capsys.readouterr().out.startswith("Error ")
