"""`mercer serve`: models by name, and the limits of the server."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mercer.cli.choices import check_jobs, size_of
from mercer.cli.messages import CallError, say

WEB_PACKAGES = ("starlette", "uvicorn", "prometheus_client")
# Names are part of addresses.
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
LARGEST_PORT = 65_535


def serve(
    models: Sequence[str],
    *,
    host: str,
    port: int,
    max_body: str,
    max_rows: int,
    max_queue: int,
    timeout: float,
    n_jobs: int | None,
) -> None:
    """Serve model files until a signal ends it."""
    missing = [name for name in WEB_PACKAGES if find_spec(name) is None]
    if missing:
        raise CallError(
            f"Missing packages: {', '.join(missing)}. Install them with pip install 'mercer[web]'."
        )
    from mercer.serve.limits import Limits
    from mercer.serve.server import serve as run

    check_jobs(n_jobs)
    if not 0 <= port <= LARGEST_PORT:
        raise CallError(f"--port must be between 0 and {LARGEST_PORT:,}. Got {port:,}.")
    if not 0 < timeout < float("inf"):
        raise CallError(f"--timeout must be a positive number of seconds. Got {timeout:g}.")
    paths = named_paths(models)
    for path in paths.values():
        if not os.path.exists(path):
            raise ValueError(f"There is no model file {path!r}. Check the spelling.")
    body = size_of(max_body, "--max-body")
    limits = Limits(
        Limits.body if body is None else int(body),
        max_rows,
        timeout,
        max(timeout, Limits.client_seconds),
        max_queue,
    )
    run(paths, host=host, port=port, limits=limits, n_jobs=n_jobs, say=say)


def named_paths(models: Sequence[str]) -> dict[str, str]:
    """Paths by name: NAME=PATH, or a path whose file name is the name.

    >>> named_paths(["house.mercer", "b=models/2024.mercer"])
    {'house': 'house.mercer', 'b': 'models/2024.mercer'}
    """
    found: dict[str, str] = {}
    for given in models:
        name, mark, path = given.partition("=")
        if not mark or os.path.exists(given):
            name, path = Path(given).stem, given
        if not re.fullmatch(NAME_PATTERN, name):
            raise CallError(
                f"A model's name may have letters, digits, dots, dashes and underscores. Got {name!r}: "
                "name it as in house=path.mercer."
            )
        if name in found:
            raise CallError(f"Two models have the name {name!r}. Name one of them as in {name}2={path}.")
        found[name] = path
    return found
