"""What a request asks for beside the prediction: the options in its address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams

from mercer.serve.faults import Fault
from mercer.serve.served import Served
from mercer.tables.wording import excerpt, listed, meant, quoted

KNOWN_OPTIONS = ("probabilities", "interval", "far", "importances")


@dataclass(frozen=True)
class Wishes:
    """Requests with the same wishes can be predicted together."""

    probabilities: bool = False
    interval: float | None = None  # the coverage of intervals, or of sets of labels
    far: bool = False
    importances: bool = False


def wishes_of(query: QueryParams, served: Served) -> Wishes:
    """The options of an address; raise for those that do not exist or that the model does not have."""
    found: dict[str, Any] = {}
    readers: dict[str, Callable[[str, str], Any]] = dict.fromkeys(KNOWN_OPTIONS, _boolean)
    readers["interval"] = _share
    for name, text in query.multi_items():
        if name not in readers:
            known = f"{meant(name, KNOWN_OPTIONS)}There are {listed(KNOWN_OPTIONS)}."
            raise Fault(422, f"There is no option {quoted(name)}. {known}")
        if name in found:
            raise Fault(422, f"The option {quoted(name)} must be given once.")
        found[name] = readers[name](name, text)
    wishes = Wishes(**found)
    if wishes.probabilities and not served.is_classifier:
        raise Fault(422, "Probabilities need a classifier, but this model predicts numbers.")
    if wishes.importances and served.importances is None:
        raise Fault(422, "This model has no importances: it has too many columns, or is constant.")
    most = served.largest_coverage
    if (wishes.interval is not None or wishes.far) and most is None:
        raise Fault(
            422,
            "This model has no intervals and does not know far rows: it has no errors of rows that it "
            "was not trained on.",
        )
    if wishes.interval is not None and most is not None and wishes.interval > most:
        raise Fault(422, f"The model has rows enough for a coverage of at most {most:g}.")
    return wishes


def _boolean(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise Fault(422, f"The option {name!r} must be true or false. Got {quoted(excerpt(text))}.")
    return text == "true"


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise Fault(
            422,
            f"The option {name!r} must be a number between 0 and 1, such as 0.9. Got "
            f"{quoted(excerpt(text))}.",
        )
    return share
