"""The command `mercer`, from the shell to a subcommand and back to an exit code.

    0        success
    1        an error in the data, the model or the machine
    2        invalid options
    128 + n  ended by signal n (130 is Ctrl-C)

Errors are one sentence on standard error; `--debug`, anywhere on the line, adds the traceback.  Signals
that end the process raise `SystemExit`, so that temporary files are removed.
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
from mercer.visible import visible

NEEDS = ("typer", "rich", "polars")
DONE, FAILED, CTRL_C = 0, 1, 128 + signal.SIGINT
# Characters of an error; it may quote what the user gave.
LONGEST_LINE = 1000
# Sent by a closing terminal, a job scheduler or a shutdown.
ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        say(f"Missing packages: {', '.join(missing)}. Install them with pip install 'mercer[cli]'.")
        return FAILED
    from mercer.cli.commands import app

    # Allowed anywhere, so that it can be added to the end of a command that failed.
    ours = given.index("--") if "--" in given else len(given)
    debug = "--debug" in given[:ours]
    rest = [word for word in given[:ours] if word != "--debug"] + given[ours:]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # for terminals without "×"
    with _endings(), _notes():
        try:
            code = _command(app)(
                rest, prog_name="mercer", standalone_mode=False, obj=shlex.join(["mercer", *given])
            )
            sys.stdout.flush()
        except SystemExit as ended:  # a signal, shell completion or a closed pipe
            code = ended.code
        except KeyboardInterrupt:
            code = CTRL_C
        except BrokenPipeError:
            code = FAILED
        except BaseException as error:  # the panics of Polars are no Exception
            if debug:
                print(visible(traceback.format_exc(), keep="\n"), file=sys.stderr)
            say(sentence(error))
            code = getattr(error, "exit_code", FAILED)
    if code == CTRL_C:
        say("Interrupted.")
    _settle_pipe()
    return code if isinstance(code, int) else DONE


def _command(app: Any) -> Any:
    """The command, with the help on one screen: few need to see the script that completion installs."""
    from typer.main import get_command

    command = get_command(app)
    for option in command.params:
        option.hidden = option.name == "show_completion"  # type: ignore[attr-defined]
    return command


def sentence(error: BaseException) -> str:
    """The error in one line."""
    if hasattr(error, "format_message"):  # invalid options, found by typer
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "mercer"
        message = _line(error.format_message()).replace("Value error, ", "")
        return f"{message} See {path} --help."
    if isinstance(error, OSError) and error.strerror:
        where = "a file" if error.filename is None else repr(os.fspath(error.filename))
        return f"Cannot read or write {where}: {error.strerror}."
    if isinstance(error, RuntimeError):
        from mercer.processes.group import RankError

        if isinstance(error, RankError):
            return _line(str(error))
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "alloc" in str(error)):
        details = f" ({_line(str(error))[:200]})" if str(error) else ""
        return f"Out of memory{details}. Use a smaller --memory, fewer rows, or a larger machine."
    if isinstance(error, (ValueError, OSError, ArithmeticError, ImportError)):
        return _line(str(error))
    return f"Unexpected {type(error).__name__}: {_line(str(error))} (--debug shows the traceback)."


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


@contextmanager
def _endings() -> Iterator[None]:
    """Inside the block, signals that end the process raise SystemExit."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _notes() -> Iterator[None]:
    """Inside the block, warnings are shown as notes, without their place in the code."""

    def show(message: Warning | str, *place: Any, **more: Any) -> None:
        say_notes([message])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)  # the library's own
        # Columns were found by name before.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        warnings.showwarning = show
        yield


def _settle_pipe() -> None:
    """Avoid an error message at exit if the reader of standard output has gone (`| head`)."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
