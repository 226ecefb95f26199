from __future__ import annotations

import io
import sys
from types import SimpleNamespace

from mercer import KernelRegressor
from mercer.selection.candidates import Candidate, Selection
from mercer.training.events.console import ConsoleProgress
from mercer.training.history import Epoch, History


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


EPOCH = Epoch(1, 0.5, 0.25, 0.9, 1.5, 64.0, 1)


def test_a_terminal_gets_a_live_line_that_is_replaced():
    stream = Terminal()
    progress = ConsoleProgress(stream)
    progress.on_batch(1, 1, 4, 0.75)
    progress.on_epoch(EPOCH)
    live, final = stream.getvalue().split("\r\x1b[K")[1:]
    assert "batch 1/4" in live
    assert "loss 0.75" in live
    assert "left" in live
    assert (
        final == "epoch   1  train loss 0.5  held-out loss 0.25  score 0.9000  1.50 s  step halved 1 ×\n"
    )
    progress._drawn, before = 0.0, len(stream.getvalue())
    progress.on_batch(2, 1, 4, 0.5)
    assert "score 0.9000" in stream.getvalue()[before:]


def test_a_narrow_terminal_shows_the_numbers_and_no_bar(monkeypatch):
    shown = {}
    for width in ("120", "80"):
        monkeypatch.setenv("COLUMNS", width)
        stream = Terminal()
        ConsoleProgress(stream).on_batch(1, 100, 2000, 57_744.0)
        shown[width] = stream.getvalue()
        assert shown[width].endswith("s left in this epoch")
    assert "█" in shown["120"]
    assert "█" not in shown["80"]
    assert "epoch 1  batch 100/2000  loss 57,744" in shown["80"]


def test_a_notebook_gets_one_line_that_is_replaced_and_nothing_on_standard_error(monkeypatch):
    shown = []
    display = SimpleNamespace(
        display=lambda data, **options: shown.append((data["text/plain"], options))
    )
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    progress = ConsoleProgress(stream)
    progress.clear()
    progress.on_stage("planning")
    progress.on_batch(1, 1, 4, 0.75)
    progress.on_epoch(EPOCH)
    assert stream.getvalue() == ""
    assert [text.split()[0] for text, _ in shown] == ["planning", "epoch", "epoch"]
    assert [options["update"] for _, options in shown] == [False, True, True]
    assert len({options["display_id"] for _, options in shown}) == 1
    assert "\n" not in shown[-1][0]


def test_a_notebook_stream_without_ipython_gets_one_line_an_epoch(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    ConsoleProgress(stream).on_epoch(EPOCH)
    assert stream.getvalue().count("\n") == 1


def test_history_and_selection_are_tables_in_a_notebook():
    history = History((EPOCH,))._repr_html_()
    assert history.count("<tr>") == 2
    assert "<th>train loss</th>" in history
    best = Candidate("gaussian", 1.5, 0.1, 0.25, True, 2000, features="<as given>")
    selection = Selection(best, (best,))._repr_html_()
    assert "<td>&lt;as given&gt;</td>" in selection
    assert "<td>2,000</td>" in selection
    assert "<td>chosen</td>" in selection


def test_stages_and_long_predictions_are_shown_and_taken_away(monkeypatch):
    monkeypatch.setattr("mercer.training.events.console.PATIENCE_SECONDS", 0.0)
    stream = Terminal()
    progress = ConsoleProgress(stream)
    progress.on_stage("estimating the spectrum")
    progress.on_rows(10, 40)
    progress.on_rows(40, 40)
    _, stage, rows, gone = stream.getvalue().split("\r\x1b[K")
    assert stage == "estimating the spectrum …"
    assert "10/40 rows" in rows
    assert gone == ""


def test_a_pipe_gets_one_line_an_epoch():
    stream = io.StringIO()
    progress = ConsoleProgress(stream)
    progress.on_batch(1, 1, 4, 0.75)
    progress.on_epoch(EPOCH)
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_fit_is_silent_by_default(rng, capfd):
    X = rng.normal(size=(50, 2))
    KernelRegressor(random_state=0).fit(X, X[:, 0])
    assert capfd.readouterr() == ("", "")
    KernelRegressor(random_state=0, verbose=1).fit(X, X[:, 0])
    assert capfd.readouterr().err.startswith("epoch   1")
