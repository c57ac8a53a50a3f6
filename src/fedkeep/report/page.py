"""The report as one self-contained HTML file: words, figures, tables, and nothing from the network."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from fedkeep.errors import RunError
from fedkeep.experiment.summary import LAST
from fedkeep.files import cannot_write, write_whole
from fedkeep.report import sections
from fedkeep.report.cards import MOST_PARTITIONS, all_cards, partitions, pen_list
from fedkeep.report.holders import MINORITY_RULE, holders
from fedkeep.report.load import HOW_TO_RECORD, how_to_record_pairs
from fedkeep.report.matrices import slider
from fedkeep.report.series import Report, load_report
from fedkeep.report.style import DARK_SCALES, FORGOTTEN, FORGOTTEN_LATER, LEARNED, REGAINED, SCALES
from fedkeep.report.words import summarise

FLOW_COLOURS = (
    ("learned", LEARNED),
    ("regained by aggregation", REGAINED),
    ("forgotten by local training", FORGOTTEN),
    ("forgotten by aggregation", FORGOTTEN_LATER),
)


def write_report(paths: Iterable[str | Path], out: str | Path = "report.html") -> Path:
    """Write the report of one or more run directories as one HTML file, and return its path."""
    return save(page(load_report(paths)), out)


def save(text: str, out: str | Path) -> Path:
    """Write a page, whole or not at all."""
    target = Path(out)
    if target.is_dir():
        raise RunError(f"{target}: is a directory; give the name of a file, e.g. {target / 'report.html'}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(target, error) from None
    write_whole(target, text.encode("utf-8"))
    return target


def page(report: Report) -> str:
    """The report as HTML."""
    loader = PackageLoader("fedkeep.report", ".")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=False, lstrip_blocks=True)
    environment.filters["words"] = as_words
    environment.filters["breakable"] = breakable
    return environment.get_template("page.html.j2").render(**_context(report, environment))


def as_words(text: str) -> Markup:
    """Plain text with `names` in backticks as HTML.

    >>> str(as_words("`fedavg` < all"))
    '<code>fedavg</code> &lt; all'
    """
    bound = str(escape(text)).replace(" %", "\N{NO-BREAK SPACE}%")
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", bound))


def breakable(name: str) -> Markup:
    """A method's name that may be broken where its parts meet.

    >>> str(breakable("fedprox(mu=0.01)+wsm"))
    'fedprox<wbr>(mu=0.01)<wbr>+wsm'
    """
    return Markup(re.sub(r"([+(@]|, )", r"<wbr>\1", str(escape(name))))


def _context(report: Report, environment: Environment) -> dict[str, Any]:
    found = partitions(report)
    cards, heat = all_cards(report, found), slider(report)
    data = {"cards": cards, "heat": heat, "scales": {"light": SCALES, "dark": DARK_SCALES}}
    return {
        "title": f"FedKeep report: {_experiment(report)}",
        "about": _about(report),
        "summary": summarise(report),
        "notes": report.notes,
        "glance": sections.glance(report),
        "compared": len(report.series) > 1,
        "several": any(len(series.runs) > 1 for series in report.series),
        "last": min(LAST, report.baseline.last_round),
        "pens": pen_list(report),
        "cards": cards,
        "heat": heat,
        "judged": _judged(report),
        "how_to_record": HOW_TO_RECORD,
        "how_to_record_pairs": how_to_record_pairs(report.runs),
        "minority_rule": as_words(MINORITY_RULE),
        "client_tables": sections.client_tables(report),
        "more_partitions": max(0, len(found) - MOST_PARTITIONS),
        "flow_colours": FLOW_COLOURS,
        "ledgers": sections.ledgers(report),
        "costs": sections.costs(report),
        "baseline": report.baseline.label,
        "recipes": sections.recipes(report),
        "own_data": any(str(run.options.get("data", "")).startswith("own:") for run in report.runs),
        "runs": sections.run_rows(report),
        "version": _version(),
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "style": Markup(_file(environment, "page.css")),
        "script": Markup(_file(environment, "page.js")),
        "plotly": Markup(get_plotlyjs()),
        "data": Markup(_json(data)),
    }


def _file(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _json(value: Any) -> str:
    """JSON that may stand inside a script element: no "<", and null for what is not a number."""
    text = json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _experiment(report: Report) -> str:
    """The experiment in a few words: what all runs have in common."""
    values = [{str(run.options.get(key, "")) for run in report.runs} for key in ("data", "partition", "model")]
    same = [found.pop() for found in values if len(found) == 1 and found != {""}]
    return ", ".join(same) or "several experiments"


def _about(report: Report) -> str:
    runs, methods = len(report.runs), len(report.series)
    clients = {str(run.options["clients"]) for run in report.runs if run.options.get("clients")}
    words = [_experiment(report)]
    if len(clients) == 1:
        words.append(f"{clients.pop()} clients")
    words.append(f"{report.baseline.last_round} rounds")
    words.append(f"{methods} method{'s' * (methods > 1)}, {runs} run{'s' * (runs > 1)}")
    return " · ".join(words)


def _judged(report: Report) -> str:
    held = holders(report.baseline.runs[0])
    return "" if held is None else f"Accuracy is judged on {held.judged_on()}."


def _version() -> str:
    try:
        return installed_version("fedkeep")
    except PackageNotFoundError:
        return "(not installed)"
