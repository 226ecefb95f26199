"""The scripts and notebooks in examples/ run, and the page of examples lists them all."""

from __future__ import annotations

import json
import re
import runpy

import pytest
from test_docs import ROOT, examples

from docs import notebooks

FOLDER = ROOT / "examples"
# What the output of each script must have.  tests/test_cli.py runs the demo, with fewer rows.
SCRIPTS = {
    "another_device.py": r"a small board +\d+ +\d+ +\d+ ×\na desktop GPU",
    "own_kernel.py": r"around the year: 1 January (-\d\.\d)°, a year later \1°",
    "search.py": r"area under the ROC curve: 0\.99",
    "stream.py": r"centres +300 (.|\n)*R² on new rows: (0\.99|1\.00)",
    "torch_layer.py": r"The model says 3\.",
}
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_every_script_is_tested_and_every_example_listed():
    assert {path.name for path in FOLDER.glob("*.py")} == {*SCRIPTS, "demo.py"}
    assert {path.stem for path in NOTEBOOKS} == set(notebooks.TUTORIALS)
    page = (ROOT / "docs" / "tutorials" / "examples.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`examples/(\w+\.\w+)`", page))
    assert listed == {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".ipynb")}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_what_it_promises(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert re.search(SCRIPTS[name], capsys.readouterr().out)
    assert not list(tmp_path.iterdir())


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_the_code_of_its_tutorial_and_no_output(path):
    """The code of the tutorials is run by test_tutorials.py."""
    page = notebooks.TUTORIALS[path.stem]
    renew = "Run `python docs/notebooks.py` to renew it."
    assert path.read_text(encoding="utf-8") == notebooks.notebook(page), renew
    assert code_cells(path) == [code.strip("\n") for code in examples(page)]
    links = re.findall(r"\]\((\.\./[^)#]+)", path.read_text(encoding="utf-8"))
    assert links
    assert all((FOLDER / link).exists() for link in links)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run_in_order(path, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    try:
        for number, code in enumerate(code_cells(path), start=1):
            exec(compile(code, f"{path.name}, cell {number}", "exec"), namespace)
    finally:
        plt.close("all")
