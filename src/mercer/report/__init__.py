"""The report of a model: one HTML page that needs neither network nor script.

    markup.py      elements that escape what they are given, and the parts of a page
    numbers.py     numbers as people read them
    charts.py      charts as SVG
    errors.py      where the model errs
    learning.py    how it learnt
    page.py        the page as a whole; report.css is its style

Whatever came from the data goes through `markup.element`, which escapes it, and the page's own policy
forbids it to load or run anything.
"""

from mercer.report.errors import Evaluation
from mercer.report.page import write_report

__all__ = ["Evaluation", "write_report"]
