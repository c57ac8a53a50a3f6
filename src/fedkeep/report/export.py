"""Any figure of the report on its own, as HTML, SVG, PNG or PDF for a paper."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path

import plotly.graph_objects as go

from fedkeep.errors import ConfigError, RunError, nearest
from fedkeep.files import cannot_write, write_whole
from fedkeep.report.browser import find_browser, pdf, picture
from fedkeep.report.cards import first_forgettable
from fedkeep.report.curves import METRICS, band
from fedkeep.report.figures import class_flows, over_rounds
from fedkeep.report.flows import class_rows, known_classes
from fedkeep.report.holders import holders, majority_of
from fedkeep.report.load import HOW_TO_RECORD, how_to_record_pairs
from fedkeep.report.maps import class_map, forgettable_map, heatmap_sheet, partition_map
from fedkeep.report.matrices import matrix, shown_rounds
from fedkeep.report.series import Report, load_report
from fedkeep.report.style import pens, ready_for_paper

SUFFIXES = (".html", ".svg", ".png", ".pdf")
WIDTH = 760


def figure(runs: str | Path | Iterable[str | Path], kind: str, round: int | None = None) -> go.Figure:
    """A figure of one or more runs: heatmap, accuracy, forgetting, forgettable, partition or classes.

    round: of the heatmap, the last one by default. Several methods share a figure where that makes sense; forgettable
    and classes show one method in more detail than several.
    """
    if kind not in KINDS:
        raise ConfigError(f'kind "{kind}" is no figure: {nearest(kind, KINDS)}')
    if round is not None and kind != "heatmap":
        raise ConfigError(f"round {round}: only the heatmap is of one round; leave --round away")
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    report = load_report(paths, None if round is None else [round])
    return KINDS[kind](report, round)


def write_figure(made: go.Figure, out: str | Path, scale: float = 2.0) -> Path:
    """Write a figure as .html, .svg, .png or .pdf; `scale` multiplies the pixels of a .png.

    HTML always works. For the others kaleido is used if it is installed, else a Chrome or Chromium directly.
    """
    target = Path(out)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{target}: figures are written as {', '.join(SUFFIXES)}; choose one of these endings")
    width, height = int(made.layout.width or WIDTH), int(made.layout.height or 400)
    if suffix == ".html":
        data = str(made.to_html(include_plotlyjs=True, full_html=True, config={"displaylogo": False})).encode("utf-8")
    else:
        data = _drawn(made, suffix[1:], width, height, scale)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(target, error) from None
    write_whole(target, data)
    return target


def _drawn(made: go.Figure, format: str, width: int, height: int, scale: float) -> bytes:
    browser = find_browser()
    if _kaleido():
        try:
            return made.to_image(format=format, width=width, height=height, scale=scale)
        except Exception as error:  # kaleido's own errors are many, and differ from version to version
            if browser is None:
                raise RunError(f"kaleido could not draw the figure ({error}); {_remedy()}") from None
    if browser is None:
        raise RunError(f"a .{format} needs a Chrome or Chromium, and none was found; {_remedy()}")
    if format == "pdf":
        return pdf(browser, picture(browser, made, "svg", width, height, 1), width, height)
    return picture(browser, made, format, width, height, scale if format == "png" else 1)


def _kaleido() -> bool:
    return importlib.util.find_spec("kaleido") is not None


def _remedy() -> str:
    return (
        'install one and pip install "fedkeep[figures]", set BROWSER_PATH to where it is, '
        "or write the figure as .html, which always works"
    )


def _heatmap(report: Report, round: int | None) -> go.Figure:
    shown = shown_rounds(report.runs)
    if not shown:
        if round is None:
            raise RunError(f"F of each pair of clients was {how_to_record_pairs(report.runs)}")
        recorded = sorted({int(number) for run in report.runs for number in run.rounds["round"]})
        raise RunError(
            f"round {round}: F of each pair of clients is not recorded there; choose from {recorded[0]} to "
            f"{recorded[-1]}, or run with --forgetting cohort if it never was"
        )
    rows = []
    for series in report.series:
        for run in series.runs:
            found = matrix(run, shown[-1])
            if found is not None:
                rows.append((f"{series.label}, round {found.round}", found, majority_of(run)))
                break
    return ready_for_paper(heatmap_sheet(rows))


def _over_rounds(name: str) -> Callable[[Report, int | None], go.Figure]:
    def draw(report: Report, _: int | None) -> go.Figure:
        drawn = pens(report)
        bands = [(drawn[series], band(series, name)) for series in report.series]
        if not any(one.known for _, one in bands):
            how = how_to_record_pairs(report.runs) if name == "forgetting" else HOW_TO_RECORD
            raise RunError(f"{METRICS[name].title} was {how}")
        return ready_for_paper(over_rounds(bands, METRICS[name]))

    return draw


def _forgettable(report: Report, round: int | None) -> go.Figure:
    first, *others = report.series
    if others:
        return _over_rounds("forgettable")(report, round)
    found = first_forgettable(first)
    if found is None:
        raise RunError(f"forgettable examples were {HOW_TO_RECORD}")
    return ready_for_paper(forgettable_map(found, colorbar=True), "Forgettable examples per client (★ minority)")


def _partition(report: Report, _: int | None) -> go.Figure:
    held = next((held for run in report.runs if (held := holders(run)) is not None), None)
    if held is None:
        raise RunError("who holds which label is unknown: partition.parquet could not be read; repeat the run")
    return ready_for_paper(partition_map(held, colorbar=True))


def _classes(report: Report, _: int | None) -> go.Figure:
    known = known_classes(report.series)
    if not known:
        raise RunError(f"classes were {HOW_TO_RECORD}")
    if len(known) == 1:
        return ready_for_paper(class_flows(next(iter(known.values()))))
    labels, rows = class_rows(known, "forgetting")
    return ready_for_paper(class_map(rows, labels, "forgetting", colorbar=True), "Forgotten by local models (points)")


KINDS: dict[str, Callable[[Report, int | None], go.Figure]] = {
    "heatmap": _heatmap,
    "accuracy": _over_rounds("accuracy"),
    "forgetting": _over_rounds("forgetting"),
    "forgettable": _forgettable,
    "partition": _partition,
    "classes": _classes,
}
