"""`fedkeep reproduce`: the tables and figures of the five papers, ours beside theirs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fedkeep.cli.console import errors, keep_whole, note, output, print_json, table
from fedkeep.cli.progress import Runs
from fedkeep.cli.run import INTERRUPTED
from fedkeep.errors import ConfigError, DataError
from fedkeep.experiment.jobs import Job
from fedkeep.files import write_whole
from fedkeep.papers.cells import Table
from fedkeep.papers.checks import RIGHT
from fedkeep.papers.pages import cell_text
from fedkeep.papers.recipe import SCALES, Recipe, find
from fedkeep.papers.reproduce import Reproduction, Settings, reproduce
from fedkeep.papers.summary import refresh

VERDICTS = {"reproduced": "green", "partly": "yellow", "not": "red"}

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RECIPE]...", help="PAPER/ITEM, a pattern such as 'importance/*', or all."),
]
Scale = Annotated[str, typer.Option("--scale", metavar="|".join(SCALES), help="How large the experiment is made.")]
Root = Annotated[Path | None, typer.Option("--data-root", help="Folder that holds the data files.")]
Seeds = Annotated[int | None, typer.Option("--seeds", help="Number of seeds; else what the recipe says.")]
Out = Annotated[Path, typer.Option("--out", help="Directory for results.")]
RunsDir = Annotated[
    Path | None, typer.Option("--runs", help="Directory for the runs, shared by all recipes; else OUT/runs.")
]
Jobs = Annotated[int, typer.Option("--jobs", help="Runs at once; 0 as many as there are cores.")]
Only = Annotated[str, typer.Option("--only", help="Only the columns whose name holds this text, e.g. MLP.")]
Finished = Annotated[
    bool, typer.Option("--finished", help="Run nothing; make the result from the runs that are finished.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and no progress.")]
Listed = Annotated[bool, typer.Option("--list", help="List the recipes: claim, data, and how long each scale takes.")]
Summary = Annotated[
    Path | None, typer.Option("--summary", metavar="DIR", help="Put all results in DIR on one page, and run nothing.")
]
Page = Annotated[Path, typer.Option("--output", "-o", metavar="FILE.md", help="The page of --summary.")]


def command(
    names: Names = None,
    scale: Scale = "smoke",
    data_root: Root = None,
    seeds: Seeds = None,
    out: Out = Path("results"),
    runs: RunsDir = None,
    jobs: Jobs = 0,
    only: Only = "",
    finished: Finished = False,
    as_json: Json = False,
    listed: Listed = False,
    summary: Summary = None,
    page: Page = Path("RESULTS.md"),
) -> None:
    """Run a table or figure of one of the five papers, and set our numbers beside the paper's.

    Scale paper has the paper's own settings, small a stated reduction of about 20 minutes, smoke takes seconds.
    Finished runs are kept and not run again; interrupted ones go on.

    \b
    fedkeep reproduce --list
    fedkeep reproduce importance/table3 --scale small --data-root ~/data
    fedkeep reproduce all --scale smoke --data-root ~/data
    fedkeep reproduce --summary results -o RESULTS.md
    """
    if summary is not None:
        _summarise(summary, page)
    elif listed or not names:
        _list(find(names or ["all"]), as_json)
    else:
        root = data_root.expanduser() if data_root else None
        if root and not root.is_dir():
            raise ConfigError(f"data root {root} is not a folder; give the folder that holds the data files")
        settings = Settings(scale, root, seeds, out, runs, jobs, only=only, run=not finished)
        _reproduce(find(names), settings, as_json)


def _summarise(folder: Path, page: Path) -> None:
    write_whole(page, refresh(folder).encode())
    output().print(Text.assemble("written: ", (str(page), "bold")), soft_wrap=True)


def _reproduce(chosen: Sequence[Recipe], settings: Settings, as_json: bool) -> None:
    def watch(todo: Sequence[Job]) -> AbstractContextManager[Any]:
        return Runs(len(todo), max((job.config.rounds for job in todo), default=1), as_json)

    documents, refused = [], None
    for recipe in chosen:
        if not as_json:
            head = Text.assemble((recipe.name, "bold"), f"  {recipe.title}", style="dim")
            errors().print(head, soft_wrap=True)
        try:
            done = reproduce(recipe, settings, watch)
        except DataError as error:
            refused = refused or error
            if len(chosen) == 1:
                raise
            note(error)
            continue
        except KeyboardInterrupt:
            note("interrupted; what is finished is kept. Run the same command again to go on")
            raise typer.Exit(INTERRUPTED) from None
        documents.append(done.result.document() | {"folder": str(done.folder)})
        if not as_json:
            _show(done)
    if refused and not documents:
        raise refused
    if as_json:
        print_json(documents)


def _show(done: Reproduction) -> None:
    """Print a result in the paper's layout."""
    result, console = done.result, output()
    for text in done.notes:
        note(text)
    for run, why in result.failures.items():
        note(f"{run} failed: {why}")
    for column, why in result.not_run.items():
        note(f"{column} not run: {why}")
    for found in result.tables:
        console.print(_laid_out(found))
    console.print(Text("ours: mean ± half of the 95 % interval; the paper's in brackets", "dim"))
    if result.reduced:
        console.print(Text(f"reduced: {result.reduced}", "dim"))
    for finding in result.findings if result.scale != "smoke" else []:
        style = "green" if finding.outcome in RIGHT else "red"
        console.print(Text.assemble((f"{finding.outcome:8}", style), f"{finding.says}. {finding.text}"))
    console.print(Text.assemble("verdict: ", (result.verdict, f"bold {VERDICTS.get(result.verdict, 'white')}")))
    console.print(Text.assemble("written: ", (str(done.folder), "bold cyan"), "\n"), soft_wrap=True)


def _laid_out(found: Table) -> Any:
    rows, columns = found.filled()
    shown = table("", *columns, numbers=tuple(columns), title=found.title)
    for row in rows:
        shown.add_row(Text(row, "cyan"), *(Text(cell_text(found, row, column)) for column in columns))
    keep_whole(shown)
    return shown


def _list(chosen: Sequence[Recipe], as_json: bool) -> None:
    if as_json:
        print_json([_document(recipe) for recipe in chosen])
        return
    console = output()
    for recipe in chosen:
        times = ", ".join(f"{scale} {recipe.scales[scale].takes}" for scale in ("small", "paper"))
        head = Text.assemble((f"{recipe.name:20}", "bold cyan"), f"{', '.join(recipe.data)}; {times}")
        console.print(head, Text(f"{recipe.where}. {recipe.claim}\n", "dim"), sep="\n")
    words = (
        f"{len(chosen)} recipes. Each has the scales {', '.join(SCALES)}; smoke takes seconds. Times are on two cores."
    )
    console.print(Text(words, "dim"))


def _document(recipe: Recipe) -> dict[str, Any]:
    scales = {
        name: {"seeds": scale.seeds, "minutes": scale.minutes, "reduced": scale.reduced}
        for name, scale in recipe.scales.items()
    }
    known = {key: getattr(recipe, key) for key in ("name", "paper", "item", "where", "title", "kind", "claim", "data")}
    return known | {"scales": scales}


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("reproduce")(command)
