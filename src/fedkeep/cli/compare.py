"""`fedkeep compare`: several methods, several seeds, side by side."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fedkeep.cli.console import duration, errors, keep_whole, note, output, print_json, size, table
from fedkeep.cli.options import FIELDS, is_file, with_options
from fedkeep.cli.progress import Runs
from fedkeep.cli.run import INTERRUPTED
from fedkeep.errors import ConfigError, RunError
from fedkeep.experiment import Config
from fedkeep.experiment.compare import Comparison, compare
from fedkeep.experiment.comparison_file import default_out, read_comparison, seeds_of
from fedkeep.experiment.summary import LAST
from fedkeep.experiment.sweep import checked_sets, grid, parse_sets

FAILED = 1  # some runs failed, the others are shown
SEEDS = 5
WIDE = 130

Methods = Annotated[
    list[str],
    typer.Argument(
        metavar="METHOD...|FILE.toml", help="Methods (`fedkeep methods`), the first to compare with; or a file."
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=V1,V2", help="Try all these values, e.g. lr=0.01,0.1; give it again for a grid."
    ),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", help=f"Number of seeds, counted from --seed. [dim]\\[default: {SEEDS}][/dim]")
]
Jobs = Annotated[int, typer.Option("--jobs", help="Runs at the same time; 0 takes what the cores allow.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Directory for runs, tables and report; else runs/compare-DATA-HASH.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and no progress.")]


@with_options([name for name in FIELDS if name != "method"])
def compare_command(
    methods: Methods,
    seeds: Seeds = None,
    sets: Sets = None,
    jobs: Jobs = 0,
    out: Out = None,
    as_json: Json = False,
    *,
    options: dict,
) -> None:
    """Compare methods on the same partitions, initial weights and cohorts, seed by seed.

    Shows means with 95 % intervals and the paired difference to the first method, with its interval and a p-value
    corrected for the number of comparisons (Holm). Finished runs are not run again, interrupted ones go on.

    With --set every method is run with every combination of values. Options of the method (lr, momentum, weight_decay,
    method.mu ...) are chosen for each method on validation data, and the choice is shown on test data.

    \b
    fedkeep compare fedavg fedavg+wsm scaffold scaffold+wsm --seeds 5
    fedkeep compare fedavg fedavg+wsm --set lr=0.01,0.03,0.1 --set partition.alpha=0.01,0.1,1
    fedkeep compare exp.toml --rounds 50
    """
    asked = gather(methods, seeds, parse_sets(sets or []), options)
    folder = out or default_out(asked["base"])
    try:
        found = _watched(asked, folder, jobs, as_json)
    except KeyboardInterrupt:
        again = f"fedkeep compare {shlex.quote(str(folder / 'comparison.toml'))} --out {shlex.quote(str(folder))}"
        note(f"interrupted; what is done is saved in {folder}. Run the same command again, or: {again}")
        raise typer.Exit(INTERRUPTED) from None
    if found.frame.empty:
        raise RunError(f"{folder}: no run came to an end; the first says: {next(iter(found.failures.values()))}")
    files = write(found)
    for text in found.notes:
        note(text)
    if as_json:
        print_json(document(found, files))
    else:
        show(found, files)
    if found.failures:
        raise typer.Exit(FAILED)


def gather(
    methods: list[str], seeds: int | None, sets: dict[str, list[Any]], options: dict[str, Any]
) -> dict[str, Any]:
    """What is to be compared, from the command line or a file; the command line has the last word."""
    if not any(is_file(text) for text in methods):
        return {"methods": methods, "seeds": SEEDS if seeds is None else seeds, "sets": sets, "base": Config(**options)}
    if len(methods) > 1:
        raise ConfigError(f'"{methods[0]}" and "{methods[1]}": give one experiment file, or methods, not both')
    path = Path(methods[0])
    table = read_comparison(path)
    named, swept, given = table.pop("methods"), table.pop("set", {}), table.pop("seeds", SEEDS)
    try:
        base = Config(**table)
        swept = checked_sets(swept)
        grid(named, swept, base)
        seeds_of(given, base)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    base = base.with_options(options)
    return {"methods": named, "seeds": given if seeds is None else seeds, "sets": {**swept, **sets}, "base": base}


def _watched(asked: dict[str, Any], folder: Path, jobs: int, quiet: bool) -> Comparison:
    base, seeds = asked["base"], seeds_of(asked["seeds"], asked["base"])
    arms = grid(asked["methods"], checked_sets(asked["sets"]), base)
    runs = len({arm.folder for arm in arms}) * len(seeds)
    if not quiet:
        text = (
            f"{len(asked['methods'])} methods, {len(seeds)} seeds, {runs} runs, {base.rounds} rounds each, in {folder}"
        )
        errors().print(Text(text, "dim"), soft_wrap=True)
    with Runs(runs, max(arm.config.rounds for arm in arms), quiet) as listen:
        return compare(asked["methods"], asked["seeds"], base, folder, jobs, asked["sets"], listen)


def write(found: Comparison) -> dict[str, Path]:
    """Write tables and report; the paths by what they are."""
    from fedkeep.report import write_report  # takes a moment to load
    from fedkeep.report.page import save
    from fedkeep.report.sensitivity import sensitivity_figure

    files = {path.stem: path for path in found.to_csv()}
    files["report"] = write_report(found.chosen_paths, found.out / "report.html")
    if found.swept:
        text = sensitivity_figure(found).to_html(include_plotlyjs=True, full_html=True)
        files["sensitivity view"] = save(text, found.out / "sensitivity.html")
    return files


def document(found: Comparison, files: dict[str, Path]) -> dict[str, Any]:
    """A comparison as one JSON document."""
    return {
        "methods": found.table().to_dict("records"),
        "runs": found.frame.drop(columns="arm").to_dict("records"),
        "chosen_on": found.how_chosen or None,
        "failures": dict(found.failures),
        "files": {name: str(path) for name, path in files.items()},
    }


def show(found: Comparison, files: dict[str, Path]) -> None:
    """Print the table, what it means, and where everything is."""
    console = output()
    first = found.arms[0].label
    columns = ["final", "best", *([f"rounds to {found.base.target:g}"] if found.base.target else []), "forgetting"]
    columns += ["up / down", "time", f"vs {first}", "p"]
    narrow = console.width < WIDE
    if narrow:
        columns = ["final", "forgetting", f"vs {first}", "p"]
    shown = table("method", *found.swept, *columns, numbers=(*found.swept, *columns))
    for row in found.table().to_dict("records"):
        if row["chosen"] or not (row["seeds"] or found.tuned):
            cells = _cells(row, found)
            settings = ["" if row[key] is None else f"{row[key]}" for key in found.swept]
            lacks = f" ({row['seeds']} of {len(found.seeds)} seeds)" if row["failed"] else ""
            shown.add_row(
                Text.assemble((row["method"], "cyan"), lacks),
                *settings,
                *(Text(cells[name.split(" ")[0]]) for name in columns),
            )
    keep_whole(shown)
    console.print(shown)
    for text in (_legend(found), found.how_chosen):
        if text:
            console.print(Text(f"\n{text}", "dim"))
    if found.failures:
        count = len(found.failures)
        text = f"{count} run{'s' if count > 1 else ''} failed, not in the numbers:"
        console.print(Text(f"\n{text}", "bold red"))
        for name, why in found.failures.items():
            console.print(Text(f"  {name}: {why}"), soft_wrap=True)
    console.print()
    for name, path in files.items():
        console.print(Text.assemble(f"{name}: ", (str(path), "bold cyan")), soft_wrap=True)


def _cells(row: dict[str, Any], found: Comparison) -> dict[str, str]:
    reached, seeds = row["reached_target"], row["seeds"]
    return {
        "final": spread(row, "final"),
        "best": spread(row, "best"),
        "rounds": f"{spread(row, 'rounds_to_target', '.1f')} ({reached} of {seeds})" if reached else "never",
        "forgetting": spread(row, "forgetting"),
        "up": f"{size(row['bytes_up'])} / {size(row['bytes_down'])}" if seeds else "",
        "time": duration(row["seconds"]) if seeds else "",
        "vs": difference(row),
        "p": "" if math.isnan(row["p"]) else f"{row['p']:.2g}",
    }


def spread(row: dict[str, Any], name: str, form: str = ".3f") -> str:
    """A mean and half its interval.

    >>> spread({"final": 0.8, "final_low": 0.7, "final_high": 0.9}, "final")
    '0.800 ± 0.100'
    """
    mean, half = row[name], (row[f"{name}_high"] - row[f"{name}_low"]) / 2
    if math.isnan(mean):
        return ""
    return f"{mean:{form}}" if math.isnan(half) else f"{mean:{form}} ± {half:{form}}"


def difference(row: dict[str, Any]) -> str:
    """A paired difference and its interval."""
    if math.isnan(row["difference"]):
        return ""
    low, high = row["difference_low"], row["difference_high"]
    interval = "" if math.isnan(low) else f" [{low:+.3f}, {high:+.3f}]"
    return f"{row['difference']:+.3f}{interval}"


def _legend(found: Comparison) -> str:
    one = len(found.seeds) == 1
    between = (
        "one seed, so no intervals and no p-values"
        if one
        else f"{len(found.seeds)} seeds, ± and [ ] are 95 % intervals"
    )
    last = min(LAST, found.base.rounds)
    return (
        f"final: accuracy on test data, mean of the last {last} rounds; {between}; "
        "vs: paired difference of final, seed by seed; p: paired t-test, corrected for the number of comparisons (Holm)"
    )


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("compare")(compare_command)
