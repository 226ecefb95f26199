"""Imports only go down, and docs/design.md shows the layers as they are."""

from __future__ import annotations

import ast

import pytest

from docs import import_graph

RENEW = f"Run `{import_graph.COMMAND}` to renew it."


@pytest.fixture(scope="module")
def modules():
    return import_graph.read_package()


def package(folder, files):
    """A package with these files, read as src/mercer is."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return import_graph.read_package(folder)


def block(page, name):
    return page.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0].strip()


def test_every_module_belongs_to_a_layer(modules):
    assert len(modules) > 50
    assert not import_graph.unplaced(modules)


def test_no_import_goes_up(modules):
    assert not import_graph.upward(modules)


def test_no_modules_import_one_another(modules):
    assert not import_graph.cycle(modules)


def test_the_mathematics_neither_prints_nor_imports_scikit_learn(modules):
    assert not import_graph.impure(modules)


def test_design_page_shows_the_layers_and_files(modules):
    page = import_graph.DESIGN.read_text(encoding="utf-8")
    assert block(page, "layers") == import_graph.layers_block(modules), RENEW
    assert block(page, "files") == import_graph.files_block(modules), RENEW
    assert import_graph.DRAWING.read_text(encoding="utf-8") == import_graph.svg(modules), RENEW


def test_design_page_shows_the_files_that_fit_and_predict_pass():
    page = import_graph.DESIGN.read_text(encoding="utf-8")
    assert block(page, "walks") == import_graph.walks_block(import_graph.walks()), RENEW


@pytest.mark.parametrize(
    ("importer", "text"),
    [
        ("planning/rehearsal.py", "from mercer.training.loop import Training"),
        ("planning/rehearsal.py", "from mercer.training import loop"),
        ("planning/rehearsal.py", "from ..training.loop import Training"),
        ("planning/rehearsal.py", "import mercer.training.loop"),
        ("planning/rehearsal.py", "def f():\n    from mercer.training.loop import Training"),
        ("planning/rehearsal.py", "from mercer import KernelClassifier"),
        ("planning/rehearsal.py", "import mercer\nmodel = mercer.KernelClassifier()"),
        ("stopwatch.py", "import mercer.data.points"),
        ("metrics.py", "import mercer.displays"),  # sideways
        ("files/whole.py", "from mercer.files.container import write"),
        ("data/points.py", "from mercer.files.whole import write"),  # runs files/__init__.py
    ],
)
def test_an_import_that_goes_up_is_found(importer, text, tmp_path):
    files = {
        "__init__.py": "",
        "data/points.py": "",
        "displays.py": "",
        "files/__init__.py": "from mercer.files.container import write",
        "files/container.py": "",
        "files/whole.py": "",
        "training/loop.py": "",
    }
    assert not import_graph.upward(package(tmp_path, files))
    found = import_graph.upward(package(tmp_path, files | {importer: text}))
    assert len(found) == 1
    name = importer.removesuffix(".py").replace("/", ".")
    assert found[0].startswith(f"mercer.{name} imports mercer")
    assert found[0].endswith("(in a function)") == text.startswith("def")


def test_an_import_that_goes_down_is_allowed(tmp_path):
    files = {
        "data/points.py": "",
        "kernels/__init__.py": "from mercer.kernels.base import Kernel",
        "kernels/base.py": "from mercer.data.points import Points",
        "cli/commands.py": "import mercer\nfrom mercer import __version__\nprint(mercer.__version__)",
        "operators/tiled.py": "from mercer.kernels import Kernel\nfrom mercer.data.points import Points",
        "training/loop.py": "from mercer.training.stopping import stop",
        "training/stopping.py": "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from mercer.training.loop import Training",
    }
    modules = package(tmp_path, files)
    assert not import_graph.upward(modules)
    assert not import_graph.cycle(modules)
    assert not import_graph.impure(modules)


def test_a_cycle_within_a_package_is_found(tmp_path):
    files = {
        "kernels/__init__.py": "from mercer.kernels.base import Kernel",
        "kernels/base.py": "def f():\n    from mercer.kernels import KERNELS",
    }
    modules = package(tmp_path, files)
    assert set(import_graph.cycle(modules)) == {"mercer.kernels", "mercer.kernels.base"}
    assert not import_graph.upward(modules)


def test_a_module_in_no_layer_is_found(tmp_path):
    assert import_graph.unplaced(package(tmp_path, {"utils/text.py": ""})) == ["mercer.utils.text"]


@pytest.mark.parametrize(
    "text",
    [
        "import sklearn",
        "from sklearn.base import BaseEstimator",
        "def f():\n    import polars as pl",
        "import matplotlib.pyplot as plt",
        "print('done')",
        "import sys\nsys.stderr.write('done')",
    ],
)
def test_mathematics_that_prints_or_imports_scikit_learn_is_found(text, tmp_path):
    modules = package(tmp_path, {"method/step.py": text, "cli/screens.py": text})
    found = import_graph.impure(modules)
    assert len(found) == 1
    assert found[0].startswith("mercer.method.step: line ")


def test_every_constant_has_one_home():
    homes: dict[str, list[str]] = {}
    for path in sorted(import_graph.PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [part for t in targets for part in (t.elts if isinstance(t, ast.Tuple) else [t])]
            for name in names:
                if isinstance(name, ast.Name) and name.id.isupper():
                    homes.setdefault(name.id, []).append(str(path.relative_to(import_graph.PACKAGE)))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
