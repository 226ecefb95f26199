"""The command `mercer`, from the shell to a subcommand and back to an exit code.

    0  it is done                          2  a wrong call
    1  data, a model or the machine        128 + n  signal n ended it (130 is Ctrl-C)

Errors are one sentence on standard error; `--debug`, anywhere, shows the traceback as well.  Signals
that end a process end it here through Python, so that whatever was being written is taken away again.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any

from mercer.cli.messages import say, say_notes

NEEDS = ("typer", "rich", "polars")
DONE, FAILED, CTRL_C = 0, 1, 128 + signal.SIGINT
# What a terminal that is closed, a job scheduler or a shutdown sends.
ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, those of the process by default; gives the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        say(
            f"The command line must have {', '.join(NEEDS)}. Got none of {', '.join(missing)}: "
            "install them by pip install 'mercer[cli]'."
        )
        return FAILED
    from mercer.cli.commands import app

    # Wherever it stands, so that it can be added to the end of the line that went wrong.
    ours = given.index("--") if "--" in given else len(given)
    debug = "--debug" in given[:ours]
    rest = [word for word in given[:ours] if word != "--debug"] + given[ours:]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without × is no reason to fail
    with _endings(), _notes():
        try:
            code = app(
                rest, prog_name="mercer", standalone_mode=False, obj=shlex.join(["mercer", *given])
            )
            sys.stdout.flush()
        except SystemExit as ended:  # a signal, shell completion, or a pipe that was closed
            code = ended.code
        except KeyboardInterrupt:
            code = CTRL_C
        except BrokenPipeError:
            code = FAILED
        except Exception as error:
            if debug:
                traceback.print_exc()
            say(sentence(error))
            code = getattr(error, "exit_code", FAILED)
    if code == CTRL_C:
        say("Interrupted.")
    _settle_pipe()
    return code if isinstance(code, int) else DONE


def sentence(error: Exception) -> str:
    """What went wrong, in one line."""
    if hasattr(error, "format_message"):  # a wrong call, as typer words it
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "mercer"
        return f"{_line(error.format_message())} See {path} --help."
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.fspath(error.filename)!r} " if error.filename is not None else ""
        return f"Files must be readable and writable. Got {where}with: {error.strerror}."
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "alloc" in str(error)):
        return (
            f"The work must fit in memory. Got {_line(str(error)) or 'no more of it'!s:.200}: "
            "try a smaller --memory, fewer rows, or a larger machine."
        )
    if isinstance(error, (ValueError, OSError, ArithmeticError, ImportError)):
        return _line(str(error))
    return (
        f"Something failed that should not have: {type(error).__name__}: {_line(str(error))} "
        "(--debug shows where)."
    )


def _line(text: str) -> str:
    return " ".join(text.split())


@contextmanager
def _endings() -> Iterator[None]:
    """Signals that end the process raise SystemExit meanwhile."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _notes() -> Iterator[None]:
    """Warnings are shown as notes, without the place in the code they come from."""

    def show(message: Warning | str, *place: Any, **more: Any) -> None:
        say_notes([message])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)  # the library's own
        warnings.showwarning = show
        yield


def _settle_pipe() -> None:
    """Where the reader has gone (`| head`), what is left must not be complained about at exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
