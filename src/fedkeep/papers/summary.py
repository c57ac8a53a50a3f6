"""All results on one page, RESULTS.md, made from the records and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedkeep.errors import RunError
from fedkeep.papers.checks import HOLDS, NOT_RUN, RIGHT
from fedkeep.papers.pages import write_readme
from fedkeep.papers.recipe import PAPERS, SCALES, Recipe, recipes
from fedkeep.papers.result import Result

MOST = 3  # findings shown for one result
HEAD = """# Results

Every table and figure of the five papers, our number beside theirs. This page is made by
`fedkeep reproduce --summary {folder} -o RESULTS.md` from the records in `{folder}/`; it is never edited by hand.

- *paper* scale has the paper's own settings, *small* a reduction that is stated in the result.
- Differences are paired by seed and given as mean ± half of the 95 % interval, the paper's in brackets.
- A claim is **reproduced** if nothing goes against it and at least half of the comparisons hold with their whole
  interval, **partly** if at least half have the right sign, otherwise **not**. The comparisons stand in the recipe.
"""


def results_in(folder: Path) -> list[tuple[Result, Path]]:
    """The results under a folder, in the order of the recipes, the largest scale first."""
    if not folder.is_dir():
        raise RunError(f"{folder}: is no folder; give the --out of `fedkeep reproduce`")
    found = []
    for name in recipes():
        for scale in reversed(SCALES):
            path = folder / name / scale / "result.json"
            if path.exists():
                found.append((Result.read(path), path.parent))
    return found


def summary(folder: Path) -> str:
    """The whole page."""
    found = results_in(folder)
    parts = [HEAD.format(folder=folder.name)]
    for paper, title in PAPERS.items():
        mine = [recipe for recipe in recipes().values() if recipe.paper == paper]
        rows = [row for recipe in mine for row in _rows(recipe, found, folder.name)]
        head = "| item | claim of the paper | scale, seeds | ours | verdict |\n|---|---|---|---|---|"
        parts.append(f"## {title}\n\n{head}\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def refresh(folder: Path) -> str:
    """The page, with the README of every result written anew (its notes may have changed)."""
    for result, place in results_in(folder):
        write_readme(result, place)
    return summary(folder)


def _rows(recipe: Recipe, found: Sequence[tuple[Result, Path]], folder: str) -> list[str]:
    mine = [result for result, _ in found if result.name == recipe.name and result.scale != "smoke"]
    if not mine:
        times = " or ".join(f"{recipe.scales[scale].takes} ({scale})" for scale in ("small", "paper"))
        why = f"**{NOT_RUN}**, because it takes {times} on two cores, and nobody has spent it yet"
        return [f"| {recipe.where} | {recipe.claim} | | | {why} |"]
    return [_row(result, folder) for result in mine]


def _row(result: Result, folder: str) -> str:
    recipe = result.recipe
    link = f"[{recipe.where}]({folder}/{result.name}/{result.scale}/README.md)"
    seeds = f"{len(result.seeds)} seed" + ("s" if len(result.seeds) > 1 else "")
    missing = sorted(set(result.not_run.values()))
    word = f"**{result.verdict}**"
    if result.verdict == NOT_RUN:
        word += f", because {'; '.join(missing) or 'no run came to its end'}"
    elif missing:
        word += f"; not run here: {', '.join(result.not_run)}"
    return f"| {link} | {recipe.claim} | {result.scale}, {seeds} | {_ours(result)} | {word} |"


def _ours(result: Result) -> str:
    findings = result.findings
    texts = [finding.text for finding in findings[:MOST]]
    if len(findings) > MOST:
        right = sum(finding.outcome in RIGHT for finding in findings)
        held = sum(finding.outcome == HOLDS for finding in findings)
        texts.append(
            f"in all, {right} of {len(findings)} comparisons have the paper's sign, {held} with their interval"
        )
    return "; ".join(texts)
