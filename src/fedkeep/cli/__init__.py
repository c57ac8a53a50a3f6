"""The command line."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedkeep import __version__
from fedkeep.cli import centralised, compare, data, demo, deploy, methods, partition, report, reproduce, run
from fedkeep.cli.console import error, note, warnings_as_notes
from fedkeep.engine.allocator import keep_freed_memory
from fedkeep.errors import FedKeepError

REFUSED = 2


class Commands(TyperGroup):
    """All commands; turns what FedKeep refuses into a message, an exit code, and no traceback."""

    def invoke(self, ctx: Any) -> Any:
        keep_freed_memory()
        with warnings_as_notes():
            try:
                return super().invoke(ctx)
            except FedKeepError as refused:
                error(refused)
                raise typer.Exit(REFUSED) from None
            except KeyboardInterrupt:
                note("interrupted")
                raise typer.Exit(run.INTERRUPTED) from None


app = typer.Typer(
    name="fedkeep",
    cls=Commands,
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedkeep {__version__}")
        raise typer.Exit


@app.callback()
def _fedkeep(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Measure forgetting in federated learning, fight it, and see which fight pays.

    \b
    fedkeep demo                              seven methods in about a minute
    fedkeep run fedavg+wsm --rounds 10        run one of them
    fedkeep compare fedavg scaffold           compare some, seed by seed
    fedkeep methods                           see what there is to combine
    """


for module in (demo, run, compare, report, methods, partition, data, centralised, reproduce, deploy):
    module.register(app)


def main() -> None:
    """The console script."""
    app()
