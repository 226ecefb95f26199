"""The comparison of defaults: its splits, its file, the methods, and the verdicts of its table."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import mercer
from benchmarks.defaults import __main__ as runner
from benchmarks.defaults import ablation, frames, record, rivals, splits, table
from benchmarks.defaults.record import Measurement, Record
from benchmarks.defaults.splits import Dataset, draw, draw_all
from benchmarks.defaults.table import BEFORE, TARGETS, Case, at_size, gathered, judge, markdown, page

LIGHT, BETTER, LINEAR, PREVIOUS, _ = TARGETS


def numbered(n, n_test=0):
    """Rows that are their own numbers; those of the test part count from 1,000,000."""
    labels = np.arange(n) % 3
    if not n_test:
        return Dataset("made", np.arange(n)[:, None], labels)
    test = 1_000_000 + np.arange(n_test)[:, None]
    return Dataset("made", np.arange(n)[:, None], labels, test, np.arange(n_test) % 3)


def found(dataset, method, errors, rows=2_000, **fields):
    """Measurements of a method, one per split."""
    made = Measurement(dataset, rows, 0, method, "as-they-stand", False, 0.0, 1.0, "1.0")
    return [replace(made, split=i, error=error, **fields) for i, error in enumerate(errors)]


def by_split(*errors):
    return dict(enumerate(errors))


@pytest.mark.parametrize("module", [splits, table])
def test_examples_in_docstrings_run(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


# Splits


def test_a_split_follows_from_its_number():
    data = numbered(40_000)
    first, again, other = (draw(data, 2_000, number) for number in (3, 3, 4))
    np.testing.assert_array_equal(first.X, again.X)
    np.testing.assert_array_equal(first.X_test, again.X_test)
    assert not np.array_equal(first.X, other.X)


@pytest.mark.parametrize("n_test", [0, 8_000])
def test_sizes_share_test_rows_and_nest_training_rows(n_test):
    data = numbered(40_000, n_test)
    few, many = draw(data, 2_000, 0), draw(data, 10_000, 0)
    assert (len(few.X), len(many.X), len(few.X_test)) == (2_000, 10_000, splits.TEST_ROWS)
    np.testing.assert_array_equal(few.X, many.X[:2_000])
    np.testing.assert_array_equal(few.X_test, many.X_test)
    assert not np.intersect1d(many.X, many.X_test).size


def test_an_official_test_part_is_kept():
    split = draw(numbered(4_000, 300), 2_000, 0)
    assert split.X.max() < 4_000
    assert len(split.X_test) == 300
    assert split.X_test.min() >= 1_000_000


@pytest.mark.parametrize(("n_test", "tested"), [(0, 25), (50, 50)])
def test_three_quarters_of_a_small_dataset_are_trained_on(n_test, tested):
    split = draw(numbered(100, n_test), 2_000, 0)
    assert split.whole
    assert (len(split.X), len(split.X_test)) == (75, tested)


def test_a_small_dataset_comes_once_for_all_sizes():
    drawn = list(draw_all(numbered(100), [2_000, 10_000], 5, declared=False))
    assert [split.number for split in drawn] == [0, 1, 2, 3, 4]


def test_the_columns_of_categories_are_those_of_the_names():
    folder = runner.FOLDER
    if not (folder / "adult.npz").is_file():
        pytest.skip("needs adult.npz in the data folder")
    with np.load(folder / "adult.npz") as arrays:
        names = [str(arrays["feature_names"][j]) for j in splits.CATEGORIES["adult"]]
    assert names == [
        "workclass",
        "education",
        "marital-status",
        "occupation",
        "relationship",
        "race",
        "sex",
        "native-country",
    ]


# Methods


def coded(regression=False, n=60):
    """A split whose second column is a category, with one code in the test rows only."""
    rng = np.random.default_rng(0)
    X = np.stack([rng.normal(size=n), rng.integers(4, size=n), rng.normal(size=n)], 1)
    y = X[:, 1] % 2 + 0.1 * X[:, 0] if regression else (X[:, 1] % 2).astype(int)
    X_test = X[:20].copy()
    X_test[0, 1] = 7
    return splits.Split("made", 0, X, y, X_test, y[:20], regression, True, categories=(1,))


@pytest.mark.filterwarnings("ignore")  # those of other libraries
@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("method", [m for m in rivals.METHODS if m != rivals.MERCER])
def test_every_rival_takes_categories_as_they_stand_and_declared(method, regression):
    if not rivals.installed(method):
        pytest.skip(f"needs {method}")
    split = coded(regression)
    if not rivals.applies(method, split):
        pytest.skip("for regression only")
    for case in (split, replace(split, categories=())):
        measured = rivals.measure(method, case, threads=1)
        assert np.isfinite(measured.error)
        assert measured.key == rivals.key(method, case)


@pytest.mark.parametrize(
    ("categories", "settings"),
    [((), {"random_state": 0}), ((1,), {"random_state": 0, "categorical_features": [1]})],
)
def test_mercer_is_told_of_categories_only_where_they_are_declared(monkeypatch, categories, settings):
    monkeypatch.setattr(mercer, "KernelClassifier", lambda **given: given)
    split = replace(coded(), categories=categories)
    assert rivals.LIBRARIES[rivals.MERCER].make(split, None) == settings


def test_a_search_uses_some_rows_and_the_fit_all(monkeypatch):
    monkeypatch.setattr(rivals, "SEARCH_ROWS", 30)
    seen = []

    class Search(rivals.GridSearchCV):
        def fit(self, X, y):
            seen.append(len(X))
            return super().fit(X, y)

    monkeypatch.setattr(rivals, "GridSearchCV", Search)
    split = replace(coded(), categories=())
    model = rivals.svm(split, None).fit(split.X, split.y)
    assert seen == [30]
    assert model[-1].shape_fit_ == split.X.shape


# The file


def test_a_run_continues_its_file_and_measures_again_only_when_asked(monkeypatch, tmp_path, capsys):
    measured = []

    def measure(method, split, threads):
        measured.append(rivals.key(method, split))
        if len(measured) == 3:
            raise KeyboardInterrupt
        return Measurement(*measured[-1], split.whole, 0.25, 1.0, "1.0")

    monkeypatch.setattr(runner, "measure", measure)
    command = ["--data", str(tmp_path), "--sets", "wine", "--methods", "Mercer", "--splits", "4"]
    command += ["--out", str(tmp_path / "out.json")]
    with pytest.raises(KeyboardInterrupt):
        runner.main(command)
    assert len(record.read(tmp_path / "out.json")) == 2
    assert runner.main(command) == 0
    assert [key[2] for key in measured] == [0, 1, 2, 2, 3]
    assert "| wine | 133 | **0.2500 ± 0.0000** |" in capsys.readouterr().out
    assert runner.main([*command, "--again"]) == 0
    assert [key[2] for key in measured[5:]] == [0, 1, 2, 3]
    assert len(json.loads((tmp_path / "out.json").read_text())["measurements"]) == 4


def test_a_failing_method_is_reported_and_the_others_go_on(monkeypatch, tmp_path, capsys):
    def measure(method, split, threads):
        if method == "linear":
            raise ValueError("no solution")
        return Measurement(*rivals.key(method, split), split.whole, 0.25, 1.0, "1.0")

    monkeypatch.setattr(runner, "measure", measure)
    command = ["--data", str(tmp_path), "--sets", "wine", "--methods", "linear", "Mercer"]
    assert runner.main([*command, "--splits", "1"]) == 1
    printed = capsys.readouterr()
    assert "wine, 133 rows, split 0, linear: ValueError: no solution" in printed.err
    assert "wine, 133 rows, split 0, Mercer: 0.2500" in printed.out


def test_rivals_that_are_not_installed_are_named_and_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(rivals, "find_spec", lambda package: None if package == "catboost" else package)
    command = ["--data", str(tmp_path), "--sets", "wine", "--methods", "CatBoost", "linear"]
    assert runner.main([*command, "--splits", "1"]) == 0
    printed = capsys.readouterr().out
    assert "Not installed and left out: CatBoost." in printed
    assert "wine, 133 rows, split 0, linear" in printed


def test_unknown_datasets_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        runner.main(["--data", str(tmp_path), "--sets", "wines"])
    assert (
        "--sets must be among breast_cancer, wine, digits, diabetes. Got wines"
        in capsys.readouterr().err
    )


# The table


def test_cells_are_means_and_standard_errors_and_the_lowest_is_bold():
    lines = gathered(
        [*found("adult", "Mercer", [0.1, 0.2, 0.3]), *found("adult", "LightGBM", [0.1, 0.1])], [], False
    )
    assert markdown(lines).splitlines()[2] == (
        "| Adult | 2,000 | 0.2000 ± 0.0577 | **0.1000 ± 0.0000** (2 of 3 splits) |"
    )


@pytest.mark.parametrize(
    ("light", "passes"),
    [
        ((0.10, 0.20, 0.30), True),  # equal
        ((0.11, 0.19, 0.29), True),  # 0.0033 worse, standard error 0.0067
        ((0.09, 0.19, 0.29), False),  # 0.01 worse on every split
        ((0.20, 0.30, 0.40), True),
    ],
)
def test_one_standard_error_is_that_of_the_paired_differences(light, passes):
    # The errors differ by 0.1 between splits, and that must not excuse a constant difference.
    line = {"Mercer": by_split(0.10, 0.20, 0.30), "LightGBM": by_split(*light)}
    assert judge(line, LIGHT)[0] is passes


def test_only_splits_of_both_methods_are_compared():
    line = {"Mercer": {0: 0.1, 1: 0.1, 2: 0.9}, "LightGBM": {0: 0.2, 1: 0.2, 3: 0.0}}
    assert judge(line, LIGHT)[0] is True


def test_one_common_split_is_no_comparison():
    line = {"Mercer": {0: 0.1, 1: 0.1}, "LightGBM": {0: 0.2, 2: 0.2}}
    assert judge(line, LIGHT) == (None, None)


def test_better_than_every_boosting_library_needs_all_of_them_and_fails_by_one():
    line = {"Mercer": by_split(0.10, 0.10)}
    line |= {name: by_split(0.12, 0.11) for name in rivals.BOOSTING}
    assert judge(line, BETTER)[0] is True
    missing = {name: errors for name, errors in line.items() if name != "CatBoost"}
    assert judge(missing, BETTER)[0] is None
    assert judge(missing | {"XGBoost": by_split(0.10, 0.10)}, BETTER)[0] is False


def test_equal_numbers_of_wrong_rows_are_a_tie():
    ours, theirs = ({i: wrong / 45 for i, wrong in enumerate(w)} for w in ([3, 0, 1, 2], [1, 1, 1, 3]))
    assert sum(ours[i] - theirs[i] for i in ours) != 0  # by rounding
    line = {"Mercer": ours, "linear": theirs} | dict.fromkeys(rivals.BOOSTING, theirs)
    assert judge(line, LINEAR)[0] is True
    assert judge(line, BETTER)[0] is False


def test_the_linear_model_may_not_be_better_at_all():
    line = {"Mercer": by_split(0.10, 0.20), "linear": by_split(0.05, 0.24)}
    passed, gap = judge(line, LINEAR)
    assert passed is False
    assert gap.mean == pytest.approx(0.005)


@pytest.mark.parametrize(("error", "passes"), [(0.1019, True), (0.1021, False), (0.05, True)])
def test_earlier_defaults_may_be_two_percent_better(error, passes):
    line = {"Mercer": by_split(error, error), BEFORE: by_split(0.1, 0.1)}
    assert judge(line, PREVIOUS)[0] is passes


@pytest.mark.parametrize(
    ("passing", "failing", "state"), [(12, 3, "met"), (11, 3, "open"), (11, 4, "missed"), (12, 0, "met")]
)
def test_a_target_is_open_while_missing_datasets_could_decide_it(passing, failing, state):
    errors = [0.1] * passing + [0.3] * failing
    lines = {
        name: {"Mercer": by_split(error, error), "LightGBM": by_split(0.2, 0.2)}
        for name, error in zip(splits.TITLES, errors, strict=False)
    }
    text = table.verdict(lines, LIGHT)
    assert f": {passing} of 15, target 12: **{state}**" in text
    assert text.count("(+0.1000 ± 0.0000)") == failing


def test_a_whole_dataset_counts_at_larger_sizes_only():
    wine, usps, few, adult = (
        Case("wine", 133, True),
        Case("usps", 5_468, True),
        Case("usps", 2_000, False),
        Case("adult", 2_000, False),
    )
    lines = {case: {"Mercer": by_split(case.rows)} for case in (wine, adult, few, usps)}
    assert at_size(lines, 2_000) == {c.dataset: lines[c] for c in (wine, adult, few)}
    assert at_size(lines, 10_000) == {c.dataset: lines[c] for c in (wine, usps)}


def test_declared_categories_have_their_own_table_and_count_with_the_usual_results_of_others():
    usual = [*found("adult", "Mercer", [0.3, 0.3]), *found("adult", "LightGBM", [0.2, 0.2])]
    usual += [*found("magic", "Mercer", [0.1, 0.1]), *found("magic", "LightGBM", [0.2, 0.2])]
    declared = [
        *found("adult", "Mercer", [0.1, 0.1], categories="declared"),
        *found("adult", "LightGBM", [0.2, 0.2], categories="declared"),
    ]
    first, second = page([*usual, *declared], [], [2_000]).split("Categories declared:")
    assert "one standard error: 1 of 15" in first
    assert "one standard error: 2 of 15" in second
    assert "| MAGIC |" in first
    assert "| MAGIC |" not in second


def test_earlier_results_are_a_column_and_a_verdict():
    ours, earlier = found("adult", "Mercer", [0.2, 0.2]), found("adult", "Mercer", [0.1, 0.1])
    assert "before" not in page(ours, [], [2_000])
    text = page(ours, earlier, [2_000])
    assert "| Adult | 2,000 | **0.2000 ± 0.0000** | 0.1000 ± 0.0000 |" in text
    assert "the defaults before: 0 of 15, target 15: **missed**. Not on Adult (+0.1000 ± 0.0000)" in text


def test_tables_are_printed_from_several_files_of_which_the_last_counts(tmp_path, capsys):
    for name, error in (("old", 0.3), ("new", 0.1)):
        kept = Record(path=tmp_path / f"{name}.json")
        for m in found("adult", "Mercer", [error, error]):
            kept.add(m)
    assert runner.main(["--table", str(tmp_path / "old.json"), str(tmp_path / "new.json")]) == 0
    assert "| Adult | 2,000 | **0.1000 ± 0.0000** |" in capsys.readouterr().out


def test_an_ablation_is_a_ratio_of_mean_errors_on_the_same_splits():
    def measured(split, method, error, dataset="adult"):
        return Measurement(dataset, 2000, split, method, "as-they-stand", False, error, 1.0, "1")

    found = [
        measured(0, "Mercer", 0.1),
        measured(1, "Mercer", 0.3),
        measured(2, "Mercer", 9.9),  # not measured without the part
        measured(0, "Mercer, no metric", 0.2),
        measured(1, "Mercer, no metric", 0.4),
        measured(0, "Mercer", 0.0, "wine"),  # no ratio to no error
        measured(0, "Mercer, no metric", 0.2, "wine"),
    ]
    assert ablation.ratios(found) == {("adult", 2000): {"Mercer, no metric": pytest.approx(1.5)}}
    lines = ablation.table(found).splitlines()
    assert lines[0] == "| dataset | rows | no metric |"
    assert lines[2] == "| Adult | 2,000 | 1.500 |"
    assert lines[-1] == "| geometric mean | | **1.500** |"


# Tables as they come


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=120),
            "colour [RGB]": rng.choice(["red", "blue", None], 120),
            "sold": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 900, 120), "D"),
        }
    )
    frame.loc[::7, "size"] = np.nan
    return frame


@pytest.mark.parametrize("method", frames.METHODS)
@pytest.mark.parametrize("classify", [True, False])
def test_every_method_takes_a_frame_with_text_dates_and_gaps(frame, method, classify):
    if not rivals.installed(method):
        pytest.skip(f"{method} is not installed")
    y = np.where(frame["colour [RGB]"] == "red", 1.0, 0.0) + 0.1 * frame["size"].fillna(0)
    y = np.where(y > 0.5, "dear", "cheap").astype(object) if classify else y.to_numpy()
    found = frames.measure("made", frame, y, 1_000, 0, method)
    assert (found.rows, found.whole) == (90, True)
    assert found.error < 0.3


def test_categories_and_dates_of_test_rows_are_those_of_training(frame):
    given = frames.with_categories(frame[100:], frame[:100], text=False)
    assert list(given["c1"].cat.categories) == ["blue", "red"]
    assert given["c1"].isna().equals(frame["colour [RGB]"][100:].isna())
    assert given["c2"].dtype == float


def test_summary_counts_tables_and_ties_within_a_standard_error():
    text = "\n".join(
        frames.summary(
            [
                *found("a", "Mercer", [0.1, 0.1], rows=50),
                *found("a", "LightGBM", [0.2, 0.2], rows=50),
                *found("b", "Mercer", [0.2, 0.4], rows=50),
                *found("b", "LightGBM", [0.3, 0.25], rows=50),
                *found("c", "Mercer", [0.4, 0.4], rows=50),
                *found("c", "LightGBM", [0.2, 0.2], rows=50),
                *found("a", "linear", [0.1, 0.1], rows=50),
            ]
        )
    )
    assert "| a | 50 | **0.1000** | 0.2000 | **0.1000** |" in text
    assert "LightGBM: Mercer has a lower error on 1 of 3 tables" in text
    assert "standard error on 2; geometric mean of the ratios of errors 1.029." in text
