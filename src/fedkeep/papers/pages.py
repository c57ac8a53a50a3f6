"""A result as Markdown: the README beside it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedkeep.files import write_whole
from fedkeep.papers.cells import NOTHING, Table
from fedkeep.papers.checks import RIGHT, Finding
from fedkeep.papers.recipe import PAPERS
from fedkeep.papers.result import IMAGE, Result

NOTES = "notes.md"
UNWRITTEN = "Nobody has written one yet."


def write_readme(result: Result, folder: Path) -> Path:
    """Write README.md beside result.json."""
    write_whole(folder / "README.md", rendered(result, folder).encode())
    return folder / "README.md"


def rendered(result: Result, folder: Path) -> str:
    """The page of a result in its folder; a notes.md that lies there is included as it is."""
    notes = folder / NOTES
    return readme(result, notes.read_text(encoding="utf-8") if notes.exists() else "", _figure(folder))


def _figure(folder: Path) -> str:
    if (folder / IMAGE).exists():
        return f"![the figure]({IMAGE})\n\n[With numbers under the pointer](figure.html)"
    return "[Figure](figure.html)" if (folder / "figure.html").exists() else ""


def readme(result: Result, notes: str = "", figure: str = "") -> str:
    """The whole page."""
    recipe, findings = result.recipe, result.findings
    parts = [
        _front(result),
        f"# {PAPERS[recipe.paper].partition(':')[0]}, {recipe.where}: {recipe.title}",
        f"**Claim.** {recipe.claim}",
        f"**Verdict: {result.verdict}** (by the rules of the recipe, {len(findings)} comparisons).",
        f"**Reduced.** {result.reduced}" if result.reduced else "",
        *(f"## {table.title}\n\n{markdown(table)}" for table in result.tables),
        "Ours: mean over seeds ± half of the 95 % interval. Paper: in brackets.",
        figure,
        _list("## Remarks", [*recipe.remarks, *result.remarks]),
        _list("## Not run", [f"{column}: not run: {why}" for column, why in result.not_run.items()]),
        _list("## Failed", [f"{run}: {why}" for run, why in result.failures.items()]),
        _list("## What agrees", _told(findings, True), "Nothing that the recipe's rules ask for."),
        _list("## What does not", _told(findings, False), "Nothing that the recipe's rules ask for."),
        f"## Best explanation\n\n{notes.strip() or UNWRITTEN}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front(result: Result) -> str:
    machine, about = result.about["machine"], result.about
    entries: dict[str, Any] = {
        "paper": result.recipe.paper,
        "item": result.recipe.item,
        "scale": result.scale,
        "seeds": list(result.seeds),
        "command": f'"{about["command"]}"',
        "machine": f'"{machine["processor"]}, {machine["cores"]} cores, {machine["memory_gb"]} GB"',
        "date": about["date"],
        "versions": "{" + ", ".join(f'{name}: "{version}"' for name, version in about["versions"].items()) + "}",
        "verdict": result.verdict,
    }
    return "\n".join(["---", *(f"{key}: {value}" for key, value in entries.items()), "---"])


def markdown(table: Table) -> str:
    """A table, the paper's number in brackets behind ours."""
    rows, columns = table.filled()
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for row in rows:
        texts = [cell_text(table, row, column) for column in columns]
        lines.append(f"| {row} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def cell_text(table: Table, row: str, column: str) -> str:
    """Our number, with the paper's in brackets where it has one."""
    cell = table.cells.get((row, column))
    if cell is None:
        return ""
    paper = cell.theirs()
    return cell.ours() if paper == NOTHING else f"{cell.ours()} ({paper})"


def _told(findings: Iterable[Finding], right: bool) -> list[str]:
    chosen = [finding for finding in findings if (finding.outcome in RIGHT) == right]
    return [f"{finding.says}: {finding.outcome}. {finding.text}" for finding in chosen]


def _list(title: str, entries: Iterable[str], nothing: str = "") -> str:
    lines = [f"- {entry}" for entry in entries] or ([nothing] if nothing else [])
    return "\n\n".join([title, "\n".join(lines)]) if lines else ""
