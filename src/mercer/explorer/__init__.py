"""Exploring data in the browser: a page on which models train while you look."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from mercer.explorer.launching import Explorer

__all__ = ["explore"]


def explore(
    X: Any,
    y: Any,
    *,
    task: Literal["classification", "regression"] | None = None,
    title: str = "data",
    port: int = 0,
    open_browser: bool = True,
    block: bool | None = None,
) -> Explorer:
    """Open a page in the browser on which models train on X and y while you look.

    Needs the extra `web`: `pip install 'mercer[web]'`.

    Parameters
    ----------
    X : array, tensor or frame of shape (n, d)
        Frames may have columns of any kind, as for `fit`.
    y : array of shape (n,)
        Labels or numbers.
    task : "classification", "regression" or None, default=None
        None decides by the values of y.
    title : str, default="data"
        Name of the data on the page.
    port : int, default=0
        Port of the local server; 0 takes a free one.
    open_browser : bool, default=True
        Open the page; if not, its address is printed.
    block : bool or None, default=None
        Serve until Ctrl-C, or return at once.  None blocks in a script, and returns in a notebook and in
        an interactive session.

    Returns
    -------
    Explorer
        Has the address as `url`; `close` ends the server.
    """
    try:
        from mercer.explorer.launching import Explorer
    except ImportError as error:
        raise ImportError(
            "`explore` needs Starlette and uvicorn. Install them with `pip install 'mercer[web]'`."
        ) from error
    from mercer.explorer.sources import from_arrays

    explorer = Explorer(from_arrays(X, y, task=task, title=title), port)
    if open_browser:
        explorer.open()
    print(f"Exploring at {explorer.url}")
    interactive = hasattr(sys, "ps1") or "ipykernel" in sys.modules
    if not interactive if block is None else block:
        print("Press Ctrl-C to end.")
        explorer.wait()
    return explorer
