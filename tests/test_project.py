"""Files about the project: examples that run, metadata that parses, commands that exist."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from test_docs import PAGES, examples

import mercer
from mercer.kernels import KERNELS

ROOT = Path(__file__).parents[1]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
EXAMPLES = ["Add a kernel", "Add an operator", "Add a file format"]
# What `make check` is made of, as the Makefile says.
CHECK = {"lint", "types", "test"}


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def sections(page):
    """The text below each heading of the second level."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def make_targets():
    rules = re.findall(r"^([a-z]+):(.*)$", text("Makefile"), re.MULTILINE)
    return {target: needs.split() for target, needs in rules}


def called_targets(commands):
    """The targets that shell commands give to make."""
    calls = re.findall(r"\bmake\s+([^\n;&|]*)", commands)
    return {word for call in calls for word in call.split() if "=" not in word}


@pytest.mark.parametrize("name", EXAMPLES)
def test_contributing_shows_an_example_of_each_extension(name):
    assert "```python" in sections(text("CONTRIBUTING.md"))[name]


def test_examples_of_contributing_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    before = dict(KERNELS)
    with patch.dict(KERNELS):  # an example registers a kernel
        for example in examples(CONTRIBUTING):
            exec(compile(example, str(CONTRIBUTING), "exec"), namespace)
        assert set(KERNELS) - set(before) == {"rational_quadratic"}
    assert before == KERNELS


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_an_example_left_open(page):
    assert not re.findall(r"<!-- open: (.*?) -->", page.read_text(encoding="utf-8"))


def test_check_is_made_of_lint_types_and_test():
    assert set(make_targets()["check"]) == CHECK


def test_contributing_lists_only_targets_that_exist():
    listed = set(re.findall(r"(?:^|`)make (\w+)", text("CONTRIBUTING.md"), re.MULTILINE))
    assert listed >= {"demo", "test", "check", "layers", "docs"}
    assert listed <= set(make_targets())


def test_hooks_run_what_check_runs_and_download_nothing():
    repositories = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    hooks = repositories[0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    called = [called_targets(hook["entry"]) for hook in hooks]
    assert set().union(*called) == CHECK


def test_workflow_runs_make_check_on_every_supported_python():
    workflow = yaml.safe_load(text(".github/workflows/check.yml"))
    job = workflow["jobs"]["check"]
    commands = "\n".join(step.get("run", "") for step in job["steps"])
    called = called_targets(commands)
    assert "check" in called
    assert called <= set(make_targets())
    listed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text("pyproject.toml"))
    assert job["strategy"]["matrix"]["python"] == listed
    assert listed[0] == re.search(r'requires-python = ">=(.+)"', text("pyproject.toml"))[1]


def test_citation_names_the_software_and_the_paper():
    citation = yaml.safe_load(text("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["type"] == "software"
    assert citation["version"] == mercer.__version__
    paper = citation["references"][0]
    assert [author["family-names"] for author in paper["authors"]] == ["Ma", "Belkin"]
    assert paper["title"] == "Kernel machines that adapt to GPUs for effective large batch training"


def test_changelog_begins_with_the_unreleased_changes_in_the_usual_groups():
    changes = sections(text("CHANGELOG.md"))
    assert next(iter(changes)) == "Unreleased"
    groups = re.findall(r"^### (.+)$", changes["Unreleased"], re.MULTILINE)
    assert groups == ["Added", "Changed", "Fixed", "Removed"]
    assert any(version.startswith(mercer.__version__) for version in changes)


def test_changelog_renames_to_parameters_that_exist():
    rows = re.findall(r"^  \| `(\w+)` \| `(\w+)` \|$", text("CHANGELOG.md"), re.MULTILINE)
    new = [name for _, name in rows]
    assert len(new) == 7
    parameters = mercer.KernelClassifier().get_params()
    assert set(new) <= set(parameters)
    assert {old for old, _ in rows} & set(parameters) == {"tol"}
