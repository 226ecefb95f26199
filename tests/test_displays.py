from __future__ import annotations

import copy
import sys
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_friedman1
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from mercer import KernelClassifier, KernelRegressor
from mercer.displays import (
    BatchSizeDisplay,
    FeatureImportancesDisplay,
    LearningCurveDisplay,
    SpectrumDisplay,
)
from mercer.estimators.features import Feature
from mercer.method.spectrum import nystrom_spectrum
from mercer.training.history import Epoch, History

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")

DISPLAYS = [LearningCurveDisplay, SpectrumDisplay, BatchSizeDisplay]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def fitted(desk):
    X, y = load_digits(return_X_y=True)
    fitted = KernelClassifier(preconditioner_rank=20, early_stopping=True, random_state=0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mercer.engine.measure_resource", lambda device, dtype: desk)
        fitted.fit(X[:600], y[:600])
    machine, s = fitted.machine_, fitted.plan_.subsample_size
    fitted.eigenvalues_ = (nystrom_spectrum(machine.kernel, machine.centres[:s], 40).sigma / s).numpy()
    return fitted


@pytest.fixture
def model(fitted, on_desk):
    """A copy, which a test may change."""
    return copy.copy(fitted)


def history(train, held_out):
    losses = enumerate(zip(train, held_out, strict=True), start=1)
    return History(tuple(Epoch(i, a, b, b and 1 - b, 0.1, 64.0, 0) for i, (a, b) in losses))


def lines(display):
    """The data of every line, by the start of its label up to ":" or "="."""
    found = {}
    for line in display.ax_.get_lines():
        name = line.get_label().split(":")[0].split(" =")[0]
        found[name] = (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
    return found


def labels(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def test_learning_curve_is_the_history(model):
    display = LearningCurveDisplay.from_estimator(model)
    drawn = lines(display)
    for label, column in (("training", "train_loss"), ("held out", "validation_loss")):
        np.testing.assert_array_equal(drawn[label][0], model.history_.column("number"))
        np.testing.assert_array_equal(drawn[label][1], model.history_.column(column))
    assert display.ax_.get_yscale() == "log"


@pytest.mark.parametrize(
    ("best", "label"),
    [
        ((3.0, 0.125), "best: epoch 3\nscore 0.8750"),
        ((3.0, 0.1), "best: epoch 3"),  # an epoch that was repeated with a smaller step
        ((0.25, 0.1), "best: after 0.25 epochs"),
    ],
)
def test_ring_is_at_the_best_weights_with_their_score_if_it_is_known(best, label):
    losses = history([0.5, 0.2, 0.1, 0.05], [0.4, 0.25, 0.125, 0.25])
    display = LearningCurveDisplay(losses, best=best).plot()
    assert lines(display)["best"] == best
    assert labels(display)[-1] == label
    assert "best" not in lines(LearningCurveDisplay(losses).plot())


def test_the_ring_can_lie_within_the_first_epoch(rng, on_desk):
    """Without a ridge, noise is overfitted before the first epoch ends."""
    X = rng.normal(size=(12_000, 3))
    y = 2 * np.sin(X[:, 0]) + 1.5 * rng.normal(size=len(X))
    model = KernelRegressor(
        "laplacian",
        bandwidth=1.0,
        ridge=0.0,
        preconditioner_rank=50,
        max_iter=2,
        random_state=0,
    )
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    assert 0 < model.best_epoch_ < 1
    assert model.best_loss_ < min(model.history_.column("validation_loss"))
    display = LearningCurveDisplay.from_estimator(model)
    assert lines(display)["best"] == (model.best_epoch_, model.best_loss_)
    assert labels(display)[-1] == f"best: after {model.best_epoch_:.2g} epochs"


def test_ring_names_the_score_of_the_estimator(model, on_desk):
    x = np.linspace(0, 6, 600)[:, None]
    regressor = KernelRegressor(early_stopping=True, random_state=0).fit(x, np.sin(x[:, 0]))
    assert "accuracy" in labels(LearningCurveDisplay.from_estimator(model))[-1]
    assert "R²" in labels(LearningCurveDisplay.from_estimator(regressor))[-1]


def test_without_held_out_rows_only_training_is_drawn():
    display = LearningCurveDisplay(history([0.5, 0.25], [None, None])).plot()
    assert list(lines(display)) == ["training"]


@pytest.mark.parametrize("n_epochs", [1, 2, 100])
def test_epochs_are_counted_in_whole_numbers(n_epochs):
    losses = [1 / i for i in range(1, n_epochs + 1)]
    display = LearningCurveDisplay(history(losses, losses)).plot()
    display.figure_.canvas.draw()
    ticks = display.ax_.get_xticks()
    np.testing.assert_array_equal(ticks, np.round(ticks))


@pytest.mark.parametrize("held_out", [[None, None], [0.0, 0.0], [0.5, 0.0]])
def test_a_loss_of_zero_can_be_drawn(held_out):
    LearningCurveDisplay(history([0.0, 0.0], held_out)).plot().figure_.canvas.draw()


def test_spectrum_is_level_up_to_q_and_unchanged_after(model):
    display = SpectrumDisplay.from_estimator(model)
    q, eigenvalues = model.plan_.preconditioner_rank, model.eigenvalues_
    drawn = lines(display)
    np.testing.assert_array_equal(drawn["$k$"][0], np.arange(1, 41))
    np.testing.assert_array_equal(drawn["$k$"][1], eigenvalues)
    levelled = drawn["$k_G$, levelled"][1]
    np.testing.assert_array_equal(levelled[:q], eigenvalues[q - 1])
    np.testing.assert_array_equal(levelled[q:], eigenvalues[q:])
    np.testing.assert_array_equal(drawn["$q$"][0], q)
    assert (display.ax_.get_xscale(), display.ax_.get_yscale()) == ("log", "log")


def test_spectrum_legend_has_the_critical_batch_sizes(model):
    plan = replace(model.plan_, beta_plain=1.0, lambda_1_plain=0.16, beta=0.5, lambda_1=1 / 2468)
    display = SpectrumDisplay(model.eigenvalues_, plan).plot()
    assert labels(display) == ["$k$: $m^*$ = 6.2", "$k_G$, levelled: $m^*$ = 1,234", "$q$ = 20"]


def test_batch_sizes_double_up_to_the_training_points(model):
    display = BatchSizeDisplay.from_estimator(model)
    assert display.batch_sizes.tolist() == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]  # of 540
    assert (display.seconds > 0).all()
    np.testing.assert_array_equal(lines(display)["measured"][0], display.batch_sizes)
    np.testing.assert_array_equal(lines(display)["measured"][1], display.seconds)


def test_batch_sizes_of_the_plan_are_marked(model):
    plan = replace(model.plan_, batch_size=50, beta=0.5, lambda_1=0.005, capacity_batch_size=400.0)
    drawn = lines(BatchSizeDisplay([1, 2], [1.0, 2.0], plan).plot())
    marked = [drawn[name][0][0] for name in ("$m$", "$m^*(k_G)$", "$m_C$")]
    assert marked == [50, 100, 400]


def test_a_device_without_limit_has_no_capacity_to_mark(model):
    plan = replace(model.plan_, capacity_batch_size=float("inf"))
    assert "$m_C$" not in lines(BatchSizeDisplay([1, 2], [1.0, 2.0], plan).plot())


def test_ideal_device_is_constant_then_linear(model):
    seconds = [1.0, 1.5, 2.0, 2.0, 4.0]
    drawn = lines(BatchSizeDisplay([1, 2, 4, 8, 16], seconds, model.plan_).plot())
    np.testing.assert_array_equal(drawn["ideal device"], [[1, 4, 16], [1, 1, 4]])


@pytest.mark.parametrize("sizes", [[], [0, 1], [1, 541]])
def test_batch_sizes_must_be_of_training_points(model, sizes):
    with pytest.raises(ValueError, match=r"`batch_sizes` must be at least 1 and at most .* 540"):
        BatchSizeDisplay.from_estimator(model, batch_sizes=sizes)


FEATURES = [
    Feature("age", "by rank", 0.2),
    Feature("a name that is longer than an axis has room for", "by rank", 0.05),
    Feature("$colour$", "category", 0.6, ("red", "blue")),
    Feature("same", "constant, dropped", 0.0),
    Feature("size", "by rank", 0.15),
]


def test_importances_are_drawn_from_the_largest_to_the_rest():
    display = FeatureImportancesDisplay(FEATURES, max_features=3).plot()
    bars = {bar.get_y() + bar.get_height() / 2: bar.get_width() for bar in display.ax_.patches}
    np.testing.assert_allclose([bars[i] for i in range(4)], [60, 20, 15, 5])
    names = [tick.get_text() for tick in display.ax_.get_yticklabels()]
    assert names == [r"\$colour\$", "age", "size", "1 other"]
    assert labels(display) == ["number, by rank", "category", "all others"]
    assert display.ax_.yaxis_inverted()
    assert display.plot(color="black").ax_.patches[0].get_facecolor() == (0, 0, 0, 1)


@pytest.mark.parametrize(
    ("bandwidth", "name"), [("auto", "in the learned metric"), (1.0, "by permutation")]
)
def test_the_axis_of_importances_names_how_they_were_found(bandwidth, name):
    X, y = make_friedman1(300, random_state=0)
    fitted = KernelRegressor("gaussian", bandwidth=bandwidth, scale=True, random_state=0).fit(X, y)
    display = FeatureImportancesDisplay.from_estimator(fitted)
    assert display.ax_.get_xlabel() == f"Share {name} (%)"


def test_a_model_without_importances_has_none_to_draw():
    X, y = load_digits(return_X_y=True)
    fitted = KernelClassifier("gaussian", bandwidth=20.0, ridge=0.0, max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning):
        fitted.fit(X[:100], y[:100])
    del fitted.feature_importances_
    with pytest.raises(ValueError, match="must have feature importances"):
        FeatureImportancesDisplay.from_estimator(fitted)
    fitted.feature_importances_ = np.full(X.shape[1], 1 / X.shape[1])
    drawn = FeatureImportancesDisplay.from_estimator(fitted, max_features=4)
    assert drawn.ax_.get_yticklabels()[0].get_text().startswith("x")
    with pytest.raises(NotFittedError):
        FeatureImportancesDisplay.from_estimator(KernelClassifier())


@pytest.mark.parametrize("display", DISPLAYS)
def test_a_new_figure_is_made_only_without_axes(model, display):
    figure, ax = plt.subplots()
    drawn = display.from_estimator(model, ax=ax)
    assert (drawn.ax_, drawn.figure_) == (ax, figure)
    assert plt.get_fignums() == [figure.number]
    assert drawn.plot() is drawn
    assert drawn.figure_ is not figure


@pytest.mark.parametrize("display", DISPLAYS)
def test_keywords_reach_the_lines(model, display):
    drawn = display.from_estimator(model).plot(color="black", linewidth=3)
    line = drawn.ax_.get_lines()[0]
    assert (line.get_color(), line.get_linewidth()) == ("black", 3)


@pytest.mark.parametrize("display", DISPLAYS)
def test_an_unfitted_estimator_is_refused(display):
    with pytest.raises(NotFittedError):
        display.from_estimator(KernelClassifier())


def test_the_error_without_matplotlib_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"need matplotlib.*mercer\[plots\]"):
        LearningCurveDisplay(history([0.5], [None])).plot()
