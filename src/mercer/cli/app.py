"""The command `mercer`, to which the subcommands are added."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="mercer",
    help="Kernel machines that adapt to your hardware: from a file to predictions.",
    epilog="Example: mercer fit train.csv --target price -o house.mercer",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def example(*lines: str) -> str:
    # The mark keeps the lines apart.
    return "\n".join(
        ["\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)]
    )


def _version(wanted: bool) -> None:
    if wanted:
        from mercer import __version__

        typer.echo(f"mercer {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _mercer(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    # `main` removes --debug, wherever it stands, before typer sees it.
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
