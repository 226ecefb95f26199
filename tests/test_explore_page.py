"""The page of `mercer explore` in a real browser, clicked through."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
from browser import PHONE, Browser
from sklearn.datasets import load_digits
from test_explore import HOSTILE, hostile_table

import mercer
from mercer.explorer.launching import Explorer

# An element by its id, and the run that is shown.
SHOWN = "document.querySelector('#run-name').textContent"
DONE = "document.querySelector('#progress').textContent.startsWith('Ended')"
RANKED = "document.querySelector('#importances .bars, #importances canvas') !== null"
SLICED = "!document.querySelector('#slice').classList.contains('stale')"
MAPPED = "!document.querySelector('#surface').classList.contains('stale')"
ROWS = "document.querySelectorAll('.runs tbody tr').length"


def move(control: str, value: float) -> str:
    """Move a slider, as a finger does."""
    return (
        f"const slider = document.querySelector('#{control}'); slider.value = {value}; "
        "slider.dispatchEvent(new Event('input', {bubbles: true}));"
    )


def finished(browser: Browser, run: int) -> None:
    browser.wait(f"{SHOWN} === 'Run {run}' && {DONE}")


def settled(browser: Browser) -> None:
    """All cards show what belongs to the run."""
    browser.wait(f"{RANKED} && {SLICED} && {MAPPED}")
    browser.wait("document.querySelectorAll('.card.stale').length === 0")


def errors(browser: Browser) -> list[str]:
    return [entry["message"] for entry in browser.log("browser") if entry["level"] == "SEVERE"]


def no_wider(browser: Browser, width: int) -> bool:
    return bool(browser.value("document.documentElement.scrollWidth") <= width)


@pytest.fixture(scope="module")
def explorer(browser: Browser) -> Iterator[Explorer]:
    table = hostile_table(150)
    explorer = mercer.explore(
        table.drop("y"), table["y"], title="<u>table</u>", block=False, open_browser=False
    )
    with explorer:
        yield explorer


@pytest.fixture
def page(browser: Browser, explorer: Explorer) -> Browser:
    browser.log("browser")
    browser.open(explorer.url, 1300)
    browser.wait(DONE)
    return browser


def last_run(browser: Browser) -> int:
    numbers: list[int] = browser.value(
        "[...document.querySelectorAll('.open')].map(b => +b.textContent)"
    )
    return max(numbers)


def test_names_of_the_data_are_text_and_nothing_else(page):
    settled(page)
    assert page.value("document.title") == "<u>table</u> – mercer explore"
    assert (
        page.value("document.querySelectorAll('main img, main u, main i, form img, form b').length") == 0
    )
    columns = page.value("[...document.querySelectorAll('#columns bdi')].map(e => e.textContent)")
    assert HOSTILE[0] in columns
    assert "new\\nline" in columns
    assert "right\\u202eleft" in columns
    assert "\u202e" not in page.text()
    assert errors(page) == []


def test_the_token_leaves_the_address_and_a_reload_still_works(page):
    assert "token" not in page.value("location.href")
    page.run("location.reload()")
    page.wait(DONE)


def test_a_reload_shows_the_settings_of_the_run_that_is_shown(page, explorer):
    before = last_run(page)
    page.run(move("ratio", 0.4))
    finished(page, before + 1)
    wanted = page.value("document.querySelector('#ratio-value').value")
    page.open(explorer.url, 1300)
    page.wait(DONE)
    assert page.value("document.querySelector('#ratio-value').value") == wanted == "2.5 × median"


def test_moving_a_slider_trains_a_new_run_and_the_cards_follow(page):
    before = last_run(page)
    page.run(move("ridge", -2))
    finished(page, before + 1)
    settled(page)
    assert "ridge 0.01" in page.value("document.querySelector('#run-settings').textContent")
    assert page.value("document.querySelector('#ridge').getAttribute('aria-valuetext')") == "0.01"
    # A movement through many positions ends with a run of the last one, and not with a run of each.
    count = page.value(ROWS)
    page.run("".join(f"setTimeout(() => {{ {move('ratio', i / 25)} }}, {15 * i});" for i in range(12)))
    page.wait("document.querySelector('#ratio-value').value.startsWith('2.8 ')")
    page.wait(f"document.querySelector('#run-settings').textContent.includes('bandwidth 7.') && {DONE}")
    assert 1 <= page.value(ROWS) - count < 12
    assert errors(page) == []


def test_runs_are_sorted_pinned_compared_and_removed(page):
    for place in (0.5, 1.0):
        before = last_run(page)
        page.run(move("ratio", place))
        finished(page, before + 1)
    cells = "[...document.querySelectorAll('.runs tbody tr td:nth-child(4)')]"
    page.click(".runs thead th:nth-child(4) button")
    assert (
        page.value("document.querySelector('.runs th:nth-child(4)').getAttribute('aria-sort')")
        == "ascending"
    )
    found = page.value(f"{cells}.map(cell => parseFloat(cell.textContent))")
    assert found == sorted(found)
    last = ".runs tbody tr:last-child"
    run = page.value(f"document.querySelector('{last} .open').textContent")
    page.click(f"{last} .icon[aria-pressed]")
    page.wait(f"document.querySelector('.runs tbody tr:first-child .open').textContent === '{run}'")
    for i in (1, 2):
        page.click(f".runs tbody tr:nth-child({i}) input[type=checkbox]")
    page.wait("document.querySelectorAll('#comparison thead th').length === 3")
    assert page.value("document.querySelectorAll('#comparison .differs').length") > 0
    page.click(".runs tbody tr:first-child .icon[aria-pressed]")
    page.wait("document.querySelector('.runs [aria-pressed=true]') === null")
    count = page.value(ROWS)
    page.click(f"{last} [aria-label^='Remove']")
    page.wait(f"{ROWS} === {count - 1}")


def test_columns_can_be_left_out_and_the_text_can_be_copied(page):
    before = last_run(page)
    page.click("#columns li:nth-child(2) input")
    finished(page, before + 1)
    assert page.value("document.querySelector('#columns-count').value") == "4 of 5"
    # The clipboard of a browser without a screen may be closed to pages; then a dialog has the text.
    page.run("navigator.clipboard.writeText = async (text) => { window.copiedText = text; }")
    page.click("#python")
    assert "KernelRegressor(" in page.wait("window.copiedText")
    assert page.value("document.querySelector('#command').hidden")  # there is no file
    page.run("navigator.clipboard.writeText = async () => { throw new Error('no'); }")
    page.click("#python")
    assert "model.fit(X, y)" in page.wait("document.querySelector('dialog[open] textarea')?.value")
    assert (
        page.value("document.querySelector('#save').getAttribute('href')") == f"/runs/{before + 1}/model"
    )


def test_the_keyboard_reaches_every_control_and_moves_sliders(page):
    names = page.value(
        "[...document.querySelectorAll('button, select, input, a[href]')].filter(e => e.offsetParent)"
        ".filter(e => !(e.labels?.length || e.ariaLabel || e.textContent.trim())).map(e => e.outerHTML)"
    )
    assert names == []
    before = last_run(page)
    page.run("document.querySelector('#ridge').focus()")
    page.press("\ue014")  # right
    finished(page, before + 1)
    assert page.value("document.querySelector('#progress').getAttribute('aria-live')") == "polite"


def test_two_tabs_show_the_same_runs(page, explorer):
    before = last_run(page)
    first = page.new_tab()
    page.open(explorer.url, 1300)
    page.wait(DONE)
    page.run(move("ridge", -1))
    finished(page, before + 1)
    page.go_to(first)
    page.wait(f"[...document.querySelectorAll('.open')].some(b => b.textContent === '{before + 1}')")


def test_a_lost_connection_is_said_and_mended(page, explorer):
    before = last_run(page)
    page.devtools("Network.enable")
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.devtools("Network.emulateNetworkConditions", offline=True, **offline)
    explorer.drop_connections()
    page.wait("!document.querySelector('#banner').hidden")
    assert "connection" in page.value("document.querySelector('#banner').textContent")
    page.devtools("Network.emulateNetworkConditions", offline=False, **offline)
    page.wait("document.querySelector('#banner').hidden")
    assert last_run(page) == before
    page.run(move("ridge", -3))
    finished(page, before + 1)


def test_a_killed_trainer_is_said_and_replaced(page, explorer):
    before = last_run(page)
    os.kill(explorer.session.trainer.pid, signal.SIGKILL)
    page.wait("document.querySelector('#banner').textContent.includes('memory')")
    page.wait("document.querySelector('#banner').hidden")
    page.run(move("ridge", 0))
    finished(page, before + 1)
    settled(page)


def test_tables_fit_their_cards_on_a_laptop(page, explorer):
    page.open(explorer.url, 1280)
    page.wait(DONE)
    settled(page)
    wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    assert page.value(f"{wide}.map(e => e.innerText.slice(0, 80))") == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_the_page_without_scrolling_sideways(page, explorer, dark):
    page.dark(dark)
    page.open(explorer.url, PHONE)
    page.wait(DONE)
    settled(page)
    assert no_wider(page, PHONE)
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(15, 19, 24)") is dark
    page.dark(False)


def table_of(name: str, rows: int) -> tuple[pl.DataFrame, Any]:
    data = np.load(f"{os.environ['MERCER_DATA']}/{name}.npz")
    names = [str(one) for one in data["feature_names"]]
    chosen = np.random.default_rng(0).permutation(len(data["X"]))[:rows]
    return pl.DataFrame(dict(zip(names, data["X"][chosen].T, strict=True))), data["y"][chosen]


REAL: dict[str, Callable[[], tuple[Any, Any]]] = {
    "adult": lambda: table_of("adult", 4_000),
    "california_houses": lambda: table_of("california_houses", 4_000),
    "digits": lambda: load_digits(return_X_y=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_tables_are_explored_from_the_first_run_to_the_search(browser, name):
    if name != "digits" and "MERCER_DATA" not in os.environ:
        pytest.skip("needs the real data sets")
    X, y = REAL[name]()
    with mercer.explore(X, y, title=name, block=False, open_browser=False) as explorer:
        browser.log("browser")
        browser.open(explorer.url, 1300)
        browser.wait(DONE, 300)
        settled(browser)
        browser.run(move("ratio", 0.3))
        finished(browser, 2)
        browser.run(move("rows", 0.9))
        finished(browser, 3)
        settled(browser)
        browser.click("#auto")
        browser.wait(f"{SHOWN} === 'Run 4'")
        browser.wait(
            f"{DONE} && document.querySelector('#run-settings').textContent.includes('searched')", 400
        )
        settled(browser)
        worst = {"adult": 0.25, "california_houses": 0.4, "digits": 0.05}[name]
        score = browser.value("parseFloat(document.querySelector('#score').textContent)") / 100
        assert 0 < score < worst
        kind = "#mistakes canvas" if name == "california_houses" else "#mistakes .matrix"
        assert browser.value(f"document.querySelector('{kind}') !== null")
        assert browser.value("document.querySelector('#importances canvas') !== null") is (
            name == "digits"
        )
        if name == "digits":  # of several classes the slices begin with that of the typical row
            assert browser.value("document.querySelector('#slice select').value") != ""
            along = browser.value("Number(document.querySelectorAll('#slice select')[1].value)")
            assert np.asarray(X)[:, along].std() > 0
        assert errors(browser) == []
