"""What was learned about the features: how much each counts, and how it is prepared."""

from __future__ import annotations

from collections.abc import Sequence

from mercer.estimators.features import CONSTANT, Feature, by_importance
from mercer.report.markup import Markup, element, join, label, shortened
from mercer.report.numbers import percent

MOST_FEATURES = 15
# Names in a sentence; of more features, only the number is given.
MOST_NAMED = 12
# Values of a category that are listed, and characters of each and of a feature's name.
MOST_VALUES = 6
LONGEST_NAME = 40
LONGEST_LEVEL = 18


ABOUT_METRIC = (
    "Each feature has one weight in the distance that the kernel sees, learned by leave-one-out error; "
    "bars are shares of their sum. A feature that another one can replace may have a small weight. "
)
ABOUT_PERMUTATION = (
    "All features count alike in the distance that the kernel sees. The values of one feature at a time "
    "were shuffled among training rows; bars are shares of the mean squared changes of the predictions. "
)


def features(found: Sequence[Feature], learned: bool) -> Markup:
    """A bar for each of the most important features, by the metric if one was learned.

    Without importances, only how they are prepared.
    """
    if all(feature.importance is None for feature in found):
        equal = "All features count alike: no learned metric was better than none, or none was tried."
        return join(element("p", equal), _groups(found))
    ranked = by_importance(found)
    shown, rest = ranked[:MOST_FEATURES], ranked[MOST_FEATURES:]
    largest = max(feature.importance or 0.0 for feature in shown) or 1.0
    rows = [_row(feature, largest) for feature in shown]
    if rest:
        share = sum(feature.importance or 0.0 for feature in rest)
        name = f"{len(rest):,} {'other' if len(rest) == 1 else 'others'}"
        rows.append(_line(element("span", name, class_="soft"), share, None, ""))
    table = element("table", element("tbody", *rows), class_="importances")
    caption = element(
        "p",
        ABOUT_METRIC if learned else ABOUT_PERMUTATION,
        *_dropped(found),
        class_="soft",
    )
    return join(table, caption)


def _row(feature: Feature, largest: float) -> Markup:
    share = feature.importance or 0.0
    return _line(label(feature.name, LONGEST_NAME), share, share / largest, _preparation(feature))


def _line(name: Markup, share: float, length: float | None, how: object) -> Markup:
    bar = "" if length is None else element("span", class_="bar", style=f"width:{100 * length:.1f}%")
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", percent(share, 1000), class_="n"),
        element("td", bar, class_="w"),
        element("td", how, class_="m"),
    )


def _preparation(feature: Feature) -> Markup:
    if not feature.values:
        return join(feature.treatment)
    names: list[object] = []
    for value in feature.values[:MOST_VALUES]:
        names += [", " if names else "", label(value, LONGEST_LEVEL)]
    more = len(feature.values) - MOST_VALUES
    return join(f"{feature.treatment}: ", *names, f" and {more:,} more" if more > 0 else "")


def _groups(found: Sequence[Feature]) -> Markup:
    """How many features are prepared in each way, and which if they are few."""
    groups: dict[str, list[Feature]] = {}
    for feature in found:
        groups.setdefault(feature.treatment, []).append(feature)
    items = (
        element("li", f"{treatment}: {len(members):,}", *_named(members))
        for treatment, members in groups.items()
    )
    return element("ul", *items)


def _dropped(found: Sequence[Feature]) -> list[object]:
    constant = [feature for feature in found if feature.treatment == CONSTANT]
    if not constant:
        return []
    what = "feature with a single value was" if len(constant) == 1 else "features with one value were"
    return [f"{len(constant):,} {what} dropped", *_named(constant), "."]


def _named(members: Sequence[Feature]) -> list[object]:
    if len(members) > MOST_NAMED:
        return []
    names: list[object] = []
    for feature in members:
        names += [", " if names else "", element("bdi", shortened(feature.name, LONGEST_NAME))]
    return [" (", *names, ")"]
