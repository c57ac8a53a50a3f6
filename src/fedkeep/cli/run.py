"""`fedkeep run` and `fedkeep resume`."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from fedkeep.cli.console import note
from fedkeep.cli.options import SPEED, resolve, with_options
from fedkeep.cli.progress import Watcher
from fedkeep.cli.summary import headline, show
from fedkeep.experiment import Config, Run, execute
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.experiment.track import tracker
from fedkeep.rounds import NoUsableUpdate
from fedkeep.simulate import RoundRecord

INTERRUPTED = 130  # what a shell reports for a program stopped by Ctrl-C

Out = Annotated[Path | None, typer.Option("--out", help="Directory to keep the run in; without it nothing is saved.")]
Track = Annotated[
    str | None,
    typer.Option(
        "--track", metavar="TOOL", help="Send each round to tensorboard, mlflow or wandb too (an extra each)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and no progress.")]


def watched(config: Config, out: Path | None, quiet: bool, track: str | None = None) -> Run:
    """Run a config with progress on stderr; Ctrl-C says how to go on."""
    with ExitStack() as stack:
        tracked = stack.enter_context(tracker(track, config, out)) if track else None
        watch = stack.enter_context(Watcher(config.method, config.rounds, quiet, headline(config)))

        def listen(record: RoundRecord) -> None:
            watch(record)
            if tracked:
                tracked(record)

        try:
            return execute(config, out, listen, command=["fedkeep", *sys.argv[1:]])
        except NoUsableUpdate:
            if out:
                note(f"records and the last good model are in {out}")
            raise
        except KeyboardInterrupt:
            pass
    note(how_to_go_on(watch.last, out))
    raise typer.Exit(INTERRUPTED)


def how_to_go_on(last: int, out: Path | None) -> str:
    """What to do after Ctrl-C."""
    when = f"interrupted after round {last}" if last else "interrupted before a round was finished"
    if out is None:
        return f"{when}; nothing was saved. With --out DIR a run can be resumed"
    if not RunDirectory(out).exists():
        return f"{when}; nothing was saved yet. Run the same command again"
    return f"{when}; saved in {out}. Run the same command again, or: fedkeep resume {shlex.quote(str(out))}"


@with_options()
def run(
    experiment: Annotated[
        str, typer.Argument(metavar="METHOD|FILE.toml", help="A method (`fedkeep methods`) or an experiment file.")
    ],
    out: Out = None,
    track: Track = None,
    as_json: Json = False,
    *,
    options: dict,
) -> None:
    """Run one method, round by round, and measure what it forgets.

    With --out the run is kept in a directory: killed at any moment, the same command goes on where it stopped.
    Options given here override those of an experiment file.

    \b
    fedkeep run fedavg+wsm --rounds 10
    fedkeep run "scaffold+wsm" --partition "shards" --clients 50 --fraction 0.2 --out runs/first
    fedkeep run exp.toml --seed 1
    """
    show(watched(resolve(experiment, options), out, as_json, track), as_json)


@with_options(SPEED)
def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of an earlier run.")],
    track: Track = None,
    as_json: Json = False,
    *,
    options: dict,
) -> None:
    """Go on with an interrupted run; it ends bit for bit as if it had never been interrupted.

    \b
    fedkeep resume runs/first
    """
    config = RunDirectory(directory).config().with_options(options)
    show(watched(config, directory, as_json, track), as_json)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(run)
    app.command()(resume)
