"""`fedkeep partition`: a picture of who holds what."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from fedkeep.cli.console import output, print_json
from fedkeep.cli.options import FIELDS, with_options
from fedkeep.cli.partition_page import page
from fedkeep.data.partition import Skew
from fedkeep.data.partition import parse as parse_partition
from fedkeep.errors import RunError
from fedkeep.experiment import Config
from fedkeep.experiment.build import data_key, load_data

MOST_CLIENTS = 40  # in the terminal
SHADES = ((0.0, "·", "grey50"), (0.05, "░", "blue"), (0.2, "▒", "cyan"), (0.5, "▓", "green"), (1.0, "█", "yellow"))
"""Up to which share of a client's examples a class is drawn how."""


@dataclass(frozen=True)
class Picture:
    """Who holds how many examples of which class."""

    config: Config
    counts: np.ndarray  # [clients, classes]
    examples: int  # in the data set
    skew: Skew

    @staticmethod
    def of(config: Config) -> Picture:
        dataset = load_data(data_key(config))
        labels = dataset.train_y.numpy()
        spec = parse_partition(config.partition)
        made = spec.build(labels, config.clients or None, config.seed, groups=dataset.groups)
        return Picture(config, made.label_counts(labels, dataset.classes), len(labels), made.skew(labels))

    @property
    def title(self) -> str:
        return f"{self.config.partition} of {self.config.data}, seed {self.config.seed}"

    def document(self) -> dict[str, Any]:
        """The picture for programs."""
        chosen = {key: getattr(self.config, key) for key in ("partition", "data", "limit", "seed")}
        return {**chosen, "examples": self.examples, "skew": asdict(self.skew), "label_counts": self.counts.tolist()}


@with_options(("data", "data_root", "limit", "clients", "seed"))
def partition(
    spec: Annotated[
        str, typer.Argument(metavar="[PARTITION]", help="E.g. dirichlet(alpha=0.1), shards, iid.", show_default=False)
    ] = str(FIELDS["partition"].default),
    page_path: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Write the picture of all clients there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
    *,
    options: dict,
) -> None:
    """Show which client holds how much of which class, and how skewed that is.

    Partitions: dirichlet(alpha=...), shards(shards_per_client=2), label_clusters(sizes=2:7),
    label_ratios(ratios=two-majors), iid, quantity_skew(alpha=...), natural.

    \b
    fedkeep partition "dirichlet(alpha=0.1)" --clients 20
    fedkeep partition "label_clusters(sizes=2:7)" --clients 0 -o who-holds-what.html
    """
    picture = Picture.of(Config(**{"partition": spec, "fraction": 1.0, **options}))
    if page_path:
        _write(page_path, page(picture.title, picture.counts, picture.skew.describe()))
    if as_json:
        print_json(picture.document())
        return
    _draw(picture)
    if page_path:
        output().print(Text.assemble("picture: ", (str(page_path), "bold")), soft_wrap=True)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}); choose another file for -o") from None


def _draw(picture: Picture) -> None:
    console = output()
    console.print(Text(picture.title, "bold"), soft_wrap=True)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("client", justify="right")
    classes = picture.counts.shape[1]
    room = console.width - 24
    cell = max(1, min(4, room // classes))
    shown.add_column(_header(classes, cell), no_wrap=True)
    shown.add_column("examples", justify="right")
    for client, counts in enumerate(picture.counts[:MOST_CLIENTS]):
        shown.add_row(str(client), _cells(counts, cell, room), str(counts.sum()))
    console.print(shown)
    if (more := len(picture.counts) - MOST_CLIENTS) > 0:
        console.print(Text(f"... and {more} more clients (-o FILE.html shows all; the skew counts all)", "dim"))
    console.print(_legend())
    console.print(Text(picture.skew.describe()))
    if (left := picture.examples - int(picture.counts.sum())) > 0:
        console.print(Text(f"{left} of {picture.examples} examples belong to nobody", "dim"))


def _header(classes: int, cell: int) -> str:
    if cell < len(str(classes - 1)) + 1:
        return f"class 0 to {classes - 1}"
    return "".join(f"{label:<{cell}}" for label in range(classes)).rstrip()


def _cells(counts: np.ndarray, cell: int, room: int) -> Text:
    """One client's classes; where they do not fit, neighbours share a cell."""
    if len(counts) > room:
        edges = np.linspace(0, len(counts), room, endpoint=False).astype(int)
        counts = np.add.reduceat(counts, edges)
    total = max(1, int(counts.sum()))
    wide = max(1, cell - 1)
    text = Text()
    for count in counts:
        sign, style = _shade(count / total)
        text.append(sign * wide + " " * (cell - wide), style)
    return text


def _shade(share: float) -> tuple[str, str]:
    return next((sign, style) for upto, sign, style in SHADES if share <= upto + 1e-9)


def _legend() -> Text:
    text = Text("share of the client's examples:", "dim")
    for upto, sign, style in SHADES:
        text.append(f"  {sign}", style)
        text.append(" none" if not upto else " more" if upto == 1 else f" to {upto:.0%}", "dim")
    return text


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(partition)
