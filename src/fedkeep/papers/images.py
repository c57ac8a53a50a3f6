"""A figure as SVG, drawn by a Chromium or Chrome that is on the machine; nothing is fetched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import urllib.parse
from pathlib import Path

import plotly.graph_objects as go

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60  # seconds
PAGE = """<!doctype html><meta charset="utf-8"><script src="{script}"></script><div id="figure"></div><script>
const spec = {spec};
Plotly.newPlot("figure", spec.data, spec.layout, {{staticPlot: true}})
  .then(drawn => Plotly.toImage(drawn, {{format: "svg", width: {width}, height: {height}}}))
  .then(url => {{ document.body.innerHTML = ""; document.body.dataset.image = url; }});
</script>
"""


def browser() -> str | None:
    """The first browser on the PATH that can draw."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def svg(figure: go.Figure, script: Path, width: int = 1100) -> bytes | str:
    """The figure as SVG; where that is not possible, the reason in words. `script`: plotly.js on this machine."""
    program = browser()
    if program is None:
        return "there is no Chromium or Chrome on the PATH"
    height = int(figure.to_dict()["layout"].get("height") or 400)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        text = PAGE.format(script=script.resolve().as_uri(), spec=figure.to_json(), width=width, height=height)
        page.write_text(text, encoding="utf-8")
        words = [
            program,
            "--headless",
            "--disable-gpu",
            "--virtual-time-budget=20000",
            f"--user-data-dir={folder}/profile",
        ]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            words.append("--no-sandbox")  # the sandbox refuses root; the page is ours and has no network
        try:
            done = subprocess.run(
                [*words, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{Path(program).name} could not draw it ({type(error).__name__})"
    return image_in(done.stdout) or f"{Path(program).name} gave no picture (exit code {done.returncode})"


def image_in(document: str) -> bytes | None:
    """The SVG that the page left behind.

    >>> image_in('<body data-image="data:image/svg+xml,%3Csvg%3E%3C%2Fsvg%3E"></body>')
    b'<svg></svg>'
    """
    found = re.search(r'data-image="data:image/svg\+xml,([^"]*)"', document)
    return urllib.parse.unquote(found.group(1)).encode() if found else None
