"""The report on a model: one HTML page without scripts or external files.

    markup.py       elements that escape their contents, and the parts of a page
    numbers.py      formatted numbers
    charts.py       charts as SVG
    evaluation.py   predictions on rows that were not trained on
    headline.py     the best estimate of the error
    errors.py       the sections on errors: confusion.py, ranking.py, calibration.py, coverage.py,
                    residuals.py, worst.py
    features.py     the section on features
    columns.py      the table of columns
    learning.py     the section on training
    plan.py         the table of the plan
    page.py         the whole page; report.css is its style sheet

All text from the data goes through `markup.element`, which escapes it, and the content security policy
of the page forbids loading or running anything.
"""

from mercer.report.evaluation import Coverage, Evaluation, RowValues, worst_rows
from mercer.report.page import write_report

__all__ = ["Coverage", "Evaluation", "RowValues", "worst_rows", "write_report"]
