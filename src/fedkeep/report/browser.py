"""Figures as pictures, by a Chrome or Chromium that is already installed; nothing is downloaded, nothing is sent."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from fedkeep.errors import RunError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
)
PATIENCE = 120  # seconds
PAGE = """<!doctype html><html><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
 style-src 'unsafe-inline'; img-src data: blob:"></head><body><pre id="picture"></pre><div id="figure"></div>
<script>{plotly}</script><script>
const figure = {figure};
Plotly.newPlot("figure", figure.data, figure.layout, {{staticPlot: true}})
  .then((drawn) => Plotly.toImage(drawn, {{format: "{format}", width: {width}, height: {height}, scale: {scale}}}))
  .then((address) => {{ document.getElementById("picture").textContent = "picture " + address + " end"; }})
  .catch((error) => {{ document.getElementById("picture").textContent = "failed " + error; }});
</script></body></html>"""


def find_browser() -> str | None:
    """The path of a Chrome or Chromium: BROWSER_PATH, or the first that is installed."""
    named = os.environ.get("BROWSER_PATH")
    if named:
        return named if Path(named).is_file() else None
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return found or next((place for place in PLACES if Path(place).is_file()), None)


def picture(browser: str, figure: go.Figure, format: str, width: int, height: int, scale: float) -> bytes:
    """A figure as the bytes of an SVG or PNG file."""
    json = str(figure.to_json()).replace("<", "\\u003c")
    text = PAGE.format(plotly=get_plotlyjs(), figure=json, format=format, width=width, height=height, scale=scale)
    with tempfile.TemporaryDirectory(prefix="fedkeep-", ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "figure.html"
        page.write_text(text, encoding="utf-8")
        found = _run(browser, folder, "--virtual-time-budget=10000", "--dump-dom", page.as_uri())
    address = re.search(rb"picture data:image/[a-z+]+([;,][^<]*?) end", found)
    if address is None:
        raise RunError(f"{browser}: did not draw the figure; write it as .html, which needs no browser")
    kind, _, data = address.group(1).decode("utf-8").partition(",")
    return base64.b64decode(data) if "base64" in kind else _unquoted(data)


def _unquoted(data: str) -> bytes:
    from html import unescape
    from urllib.parse import unquote

    return unquote(unescape(data)).encode("utf-8")


def pdf(browser: str, svg: bytes, width: int, height: int) -> bytes:
    """An SVG picture as a PDF file of one page of its size."""
    style = f"@page{{size:{width}px {height}px;margin:0}}body{{margin:0}}svg{{display:block}}"
    with tempfile.TemporaryDirectory(prefix="fedkeep-", ignore_cleanup_errors=True) as folder:
        page, out = Path(folder) / "figure.html", Path(folder) / "figure.pdf"
        page.write_bytes(f'<!doctype html><meta charset="utf-8"><style>{style}</style>'.encode() + svg)
        _run(browser, folder, "--no-pdf-header-footer", f"--print-to-pdf={out}", page.as_uri())
        if not out.is_file():
            raise RunError(f"{browser}: did not print the figure; write it as .svg or .html")
        return out.read_bytes()


def _run(browser: str, folder: str, *words: str) -> bytes:
    # Chrome refuses to be sandboxed when root starts it; the page is ours and cannot reach the network.
    root = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    command = [browser, *FLAGS, *root, f"--user-data-dir={Path(folder) / 'profile'}", *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{browser}: could not draw the figure ({error}); write it as .html") from None
    return done.stdout
