"""The layers of src/mercer, and a check that imports only go down.

    python docs/import_graph.py            print sizes, walks and violations, if any
    python docs/import_graph.py --write    renew docs/design.md and docs/img/layers.svg

The import statements are read from the source, not executed.  Imports under `if TYPE_CHECKING:` do not
count.  Imports inside functions count and are marked as lazy.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

# From bottom to top: the packages and modules of each layer, and what they are for.  A module may
# import its own package and the layers below it.
LAYERS = (
    (("digits",), "numbers in lines of text"),
    (
        ("files.whole", "files.records", "notebook", "palette", "stopwatch", "visible"),
        "atomic writes, lasting records, notebooks, colours, timing, escapes",
    ),
    (("processes",), "several processes as one: messages, threads, faults"),
    (("data",), "prepared rows: floats or bytes, in memory or on disk"),
    (("kernels",), "k(x, z) from distances or inner products"),
    (("operators",), "products with the kernel matrix"),
    (("model",), "centres and weights; prediction"),
    (("method",), "the paper: spectrum, preconditioner, step"),
    (("planning",), "the device; s, q, m and eta; time and memory"),
    (("selection",), "kernel, bandwidth and ridge by leave-one-out"),
    (("training",), "epochs, stopping, divergence guard, callbacks"),
    (("preparation",), "from rows to a problem: inputs, kernel, ridge, plan"),
    (("files",), "model files and checkpoints"),
    (("engine",), "the method without scikit-learn"),
    (("tables",), "data files, and columns of any kind as features"),
    (("estimators",), "KernelClassifier and KernelRegressor"),
    (("displays", "metrics", "short_labels"), "scores, plots, labels that fit"),
    (("explorer", "report"), "the page for exploring data; the HTML report"),
    (("serve",), "predictions over HTTP"),
    (("cli",), "the command line"),
)
MEMBERS = [member for members, _ in LAYERS for member in members]
RANKS = {member: rank for rank, (members, _) in enumerate(LAYERS) for member in members}
# The mathematics neither imports these nor prints.
PURE = {*LAYERS[0][0], *LAYERS[1][0], "data", "kernels", "operators", "model", "method"}
NOT_PURE = {"sklearn", "rich", "typer", "matplotlib", "polars"}
# The public names and the entry point; they may import everything and nothing may import them.
OUTSIDE = ("mercer", "mercer.__main__")
# Files that observe a run.  They are listed apart from the walk through the method.
OBSERVERS = "training/events/"

DOCS = Path(__file__).resolve().parent
PACKAGE = DOCS.parent / "src" / "mercer"
DESIGN = DOCS / "design.md"
DRAWING = DOCS / "img" / "layers.svg"
COMMAND = "python docs/import_graph.py --write"


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.importer} imports {self.imported}" + (" (in a function)" if self.lazy else "")


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    lines: int
    about: str  # the first sentence of its docstring
    imports: tuple[Import, ...]  # of this package
    impure: tuple[str, ...]  # what the mathematics must not do, with line numbers


class _Reader(ast.NodeVisitor):
    """Collects what a module imports and whether it prints."""

    def __init__(self, name: str, is_package: bool, known: Iterable[str]) -> None:
        self.name, self.known = name, set(known)
        self.package = name if is_package else name.rpartition(".")[0]
        self.in_functions = 0
        self.imports: dict[tuple[str, bool], Import] = {}
        self.impure: list[str] = []

    def add(self, target: str, line: int) -> None:
        root = target.partition(".")[0]
        if root in NOT_PURE:
            self.impure.append(f"line {line} imports {root}")
        if root == "mercer":
            lazy = self.in_functions > 0
            self.imports[target, lazy] = Import(self.name, target, lazy)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name != "mercer":  # what is used of it counts; see visit_Attribute
                self.add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        above = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
        source = ".".join([*(above if node.level else []), *([node.module] if node.module else [])])
        for alias in node.names:
            if f"{source}.{alias.name}" in self.known:
                self.add(f"{source}.{alias.name}", node.lineno)
            elif not (source == "mercer" and alias.name.startswith("__")):
                self.add(source, node.lineno)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if owner == "mercer" and not node.attr.startswith("__"):
            self.add("mercer", node.lineno)
        if owner == "sys" and node.attr in ("stdout", "stderr"):
            self.impure.append(f"line {node.lineno} uses sys.{node.attr}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "print":
            self.impure.append(f"line {node.lineno} calls print")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        typing_only = ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for child in node.orelse if typing_only else ast.iter_child_nodes(node):
            self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.in_functions += 1
        self.generic_visit(node)
        self.in_functions -= 1

    visit_AsyncFunctionDef = visit_FunctionDef


def read_package(folder: Path = PACKAGE) -> dict[str, Module]:
    """Every module below `folder`, by its dotted name."""
    paths = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        paths[".".join(("mercer", *(part for part in parts if part != "__init__")))] = path
    modules = {}
    for name, path in paths.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        reader = _Reader(name, path.name == "__init__.py", paths)
        reader.visit(tree)
        about = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
        about = re.split(r"(?<=\.)\s", about)[0].removesuffix(".")
        imports = tuple(reader.imports.values())
        modules[name] = Module(name, path, len(text.splitlines()), about, imports, tuple(reader.impure))
    return {name: _with_packages(module, modules) for name, module in modules.items()}


def _with_packages(module: Module, modules: Mapping[str, Module]) -> Module:
    """Importing a.b also executes a/__init__.py, which matters if that imports anything."""
    found = dict.fromkeys(module.imports)
    for entry in module.imports:
        parent = entry.imported.rpartition(".")[0]
        inside = f"{module.name}.".startswith(f"{parent}.")
        if parent in modules and parent != "mercer" and not inside and modules[parent].imports:
            found[Import(module.name, parent, entry.lazy)] = None
    return replace(module, imports=tuple(found))


def member_of(name: str) -> str | None:
    """The longest entry of LAYERS that contains a module; None if there is none."""
    inside = [member for member in MEMBERS if f"{name}.".startswith(f"mercer.{member}.")]
    return max(inside, key=len, default=None)


def unplaced(modules: Mapping[str, Module]) -> list[str]:
    """Modules that belong to no layer."""
    return [name for name in modules if member_of(name) is None and name not in OUTSIDE]


def goes_up(importer: str | None, imported: str | None) -> bool:
    """Whether an import between two entries of LAYERS goes up, or sideways within a layer."""
    if importer is None or importer == imported:
        return False
    return imported is None or RANKS[imported] >= RANKS[importer]


def upward(modules: Mapping[str, Module]) -> list[str]:
    """Imports of a higher layer, or of another member of the same layer."""
    found = [entry for module in modules.values() for entry in module.imports]
    return [
        str(entry) for entry in found if goes_up(member_of(entry.importer), member_of(entry.imported))
    ]


def cycle(modules: Mapping[str, Module]) -> list[str]:
    """One cycle of modules that import one another; empty if there is none."""
    graph = {name: [entry.imported for entry in module.imports] for name, module in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def impure(modules: Mapping[str, Module]) -> list[str]:
    """Where the mathematics imports scikit-learn or something that prints, or prints itself."""
    return [
        f"{module.name}: {what}"
        for module in modules.values()
        if member_of(module.name) in PURE
        for what in module.impure
    ]


def entered(task: Callable[[], Any]) -> list[str]:
    """The files of the package whose functions a task calls, in the order of their first call."""
    files: dict[str, None] = {}
    root = f"{import_module('mercer').__path__[0]}{os.sep}"

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        # The body of a module or class is executed when it is imported; only functions are optimised.
        if (
            event == "call"
            and code.co_flags & inspect.CO_OPTIMIZED
            and code.co_filename.startswith(root)
        ):
            files[Path(code.co_filename).relative_to(root).as_posix()] = None

    sys.setprofile(note)
    try:
        task()
    finally:
        sys.setprofile(None)
    return list(files)


def trace() -> dict[str, list[str]]:
    """The files that a small fit and a small predict enter, on one thread so that the order is fixed."""
    import numpy as np

    for name in read_package():
        if member_of(name) in MEMBERS[: MEMBERS.index("estimators") + 1]:
            import_module(name)
    X = np.random.default_rng(0).normal(size=(600, 5))
    model = import_module("mercer").KernelClassifier(
        early_stopping=True, device="cpu", n_jobs=1, random_state=0
    )
    return {
        "fit": entered(lambda: model.fit(X, X[:, 0] > 0)),
        "predict": entered(lambda: model.predict(X)),
    }


def walks() -> dict[str, list[str]]:
    """`trace` in a process of its own, with an empty cache, so that the device is measured."""
    with tempfile.TemporaryDirectory() as home:
        paths = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"HOME": home, "XDG_CACHE_HOME": home, "PYTHONPATH": paths}
        command = [sys.executable, __file__, "--trace"]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    result: dict[str, list[str]] = json.loads(done.stdout)
    return result


def drawn(modules: Mapping[str, Module]) -> tuple[list[str], dict[tuple[str, str], bool]]:
    """The members that exist, top to bottom, and which imports which; True if only in functions."""
    pairs: dict[tuple[str, str], bool] = {}
    for module in modules.values():
        for entry in module.imports:
            importer, imported = member_of(entry.importer), member_of(entry.imported)
            if importer and imported and importer != imported:
                pairs[importer, imported] = pairs.get((importer, imported), True) and entry.lazy
    present = {member_of(name) for name in modules}
    return [member for member in reversed(MEMBERS) if member in present], pairs


STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de } .band { fill: #eef1f6 }
  .name { fill: #1f2328; font-weight: 600 } .text { fill: #57606a }
  .self { fill: #d0d7de } .dot { fill: #3949ab; stroke: #3949ab }
  .up { fill: #cf222e; stroke: #cf222e } .lazy { fill: none }
  text { font: 13px system-ui, sans-serif } .small { font-size: 12px }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1e2129; stroke: #3d444d } .band { fill: #2a2f3a } .name { fill: #e6edf3 }
    .text { fill: #a3adb8 } .self { fill: #4a5261 } .dot { fill: #9fa8f5; stroke: #9fa8f5 }
    .up { fill: #ff7b72; stroke: #ff7b72 } .lazy { fill: none }
  }
"""
LEGEND = (
    "A dot: the package in this row imports the one in this column; a ring: only inside functions.",
    "Imports only go down, so every dot lies to the right of the diagonal.",
)


def svg(modules: Mapping[str, Module]) -> str:
    """The layers as rows, and as a matrix of dots which of them imports which."""
    members, pairs = drawn(modules)
    row, cell, left, words, matrix, top = 26, 20, 20, 180, 500, 100
    width, height = matrix + cell * len(members) + 48, top + row * len(members) + 64
    label = "Layers of Mercer from top to bottom, and which of them imports which"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{label}">',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
    ]
    for rank in range(len(LAYERS)):
        rows = [i for i, member in enumerate(members) if RANKS[member] == rank]
        if rows:
            y, tall = top + row * rows[0], row * len(rows) - 3
            lines.append(
                f'<rect class="band" x="12" y="{y}" width="{width - 24}" height="{tall}" rx="4"/>'
                f'<text class="text small" x="{words}" y="{y + tall / 2 + 4:g}">{LAYERS[rank][1]}</text>'
            )
    for i, member in enumerate(members):
        x, middle = matrix + cell * i + cell / 2, top + row * i + row / 2 - 1.5
        turned = f"translate({x + 4:g} {top - 8}) rotate(-60)"
        lines.append(
            f'<text class="name" x="{left}" y="{middle + 4.5:g}">{member}</text>'
            f'<text class="text small" transform="{turned}">{member}</text>'
            f'<rect class="self" x="{x - 5:g}" y="{middle - 5:g}" width="10" height="10" rx="2"/>'
        )
        for j, other in enumerate(members):
            if (member, other) in pairs:
                kind = "up" if goes_up(member, other) else "dot"
                lazy = " lazy" if pairs[member, other] else ""
                at = f'cx="{matrix + cell * j + cell / 2:g}" cy="{middle:g}" r="4.5"'
                lines.append(f'<circle class="{kind}{lazy}" {at} stroke-width="1.5"/>')
    for i, sentence in enumerate(LEGEND):
        lines.append(f'<text class="text small" x="{left}" y="{height - 36 + 18 * i}">{sentence}</text>')
    return "\n".join([*lines, "</svg>", ""])


def layers_block(modules: Mapping[str, Module]) -> str:
    """The drawing and the same as text."""
    members, pairs = drawn(modules)
    lines = []
    for names, about in reversed(LAYERS):
        present = [name for name in members if name in names]
        below = [other for other in members if any((name, other) in pairs for name in present)]
        if present:
            lines.append(textwrap.fill(f"{', '.join(present)}: {about}", 94))
            imports = f"    imports {', '.join(below) or 'nothing of Mercer'}"
            lines.append(textwrap.fill(imports, 96, subsequent_indent="    "))
    text = "\n".join(lines)
    return f"![Layers and imports](img/{DRAWING.name})\n\n```text\n{text}\n```"


def walks_block(found: Mapping[str, list[str]]) -> str:
    """The files that each walk passes."""
    parts = []
    for name, files in found.items():
        path = [file.removesuffix(".py") for file in files if not file.startswith(OBSERVERS)]
        beside = [file.removesuffix(".py") for file in files if file.startswith(OBSERVERS)]
        also = f" Beside it: {', '.join(f'`{file}`' for file in beside)}." if beside else ""
        route = textwrap.fill(" → ".join(path), 96, break_on_hyphens=False)
        parts.append(f"`{name}` passes {len(path)} files.{also}\n\n```text\n{route}\n```")
    return "\n\n".join(parts)


def files_block(modules: Mapping[str, Module]) -> str:
    """One line for each file, from its docstring; packages are in the order of the layers."""
    rows = ["| file | contents |", "| --- | --- |"]
    for member in [None, *reversed(MEMBERS)]:
        for module in modules.values():
            if member_of(module.name) == member:
                file = f"`{module.path.relative_to(PACKAGE).as_posix()}`"
                if file.endswith("/__init__.py`"):
                    file = f"**{file.replace('__init__.py', '')}**"
                about = module.about.replace("|", "\\|")
                rows.append(f"| {file} | {about} |")
    return "\n".join(rows)


def with_block(page: str, name: str, block: str) -> str:
    """The page with another text between the two markers of this name."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{block}\n\n{end}{rest.split(end)[1]}"


def main(arguments: list[str]) -> int:
    if arguments == ["--trace"]:
        print(json.dumps(trace()))
        return 0
    modules, routes = read_package(), walks()
    if arguments == ["--write"]:
        page = with_block(DESIGN.read_text(encoding="utf-8"), "layers", layers_block(modules))
        page = with_block(page, "files", files_block(modules))
        DESIGN.write_text(with_block(page, "walks", walks_block(routes)), encoding="utf-8")
        DRAWING.write_text(svg(modules), encoding="utf-8")
    sizes = {module.path.relative_to(PACKAGE).as_posix(): module.lines for module in modules.values()}
    largest = max(sizes, key=lambda name: sizes[name])
    print(f"{len(sizes)} files; median {statistics.median(sizes.values()):g} lines; ", end="")
    print(f"largest {largest}, {sizes[largest]} lines")
    for name, files in routes.items():
        observers = [file for file in files if file.startswith(OBSERVERS)]
        print(f"{name}: {len(files) - len(observers)} files and {len(observers)} observers")
        print(textwrap.indent("\n".join(files), "  "))
    circle = cycle(modules)
    problems = [f"no layer: {name}" for name in unplaced(modules)]
    problems += [f"upward: {entry}" for entry in upward(modules)]
    problems += [f"cycle: {' → '.join(circle)}"] if circle else []
    problems += [f"not pure: {entry}" for entry in impure(modules)]
    print("\n".join(problems) or "Imports only go down.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
