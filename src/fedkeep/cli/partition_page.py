"""A partition as one small HTML page."""

from __future__ import annotations

from html import escape

import numpy as np

MOST = 2000  # clients on the page

STYLE = """
:root { color-scheme: light dark; --ink: 37, 99, 235; }
@media (prefers-color-scheme: dark) { :root { --ink: 96, 165, 250; } }
body { font: 14px system-ui, sans-serif; margin: 1.5rem auto; max-width: 60rem; padding: 0 1rem; }
div { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 1px; font-variant-numeric: tabular-nums; }
th, td { padding: 1px 4px; text-align: right; font-weight: normal; min-width: 1.6em; }
td.held { background: rgba(var(--ink), calc(0.12 + 0.8 * var(--share))); }
thead th, tbody th { opacity: 0.7; }
"""


def page(title: str, counts: np.ndarray, skew: str) -> str:
    """One self-contained page: a row per client, a column per class, darker the larger the class's share."""
    shown = counts[:MOST]
    head = "".join(f"<th>{label}</th>" for label in range(counts.shape[1]))
    rows = "\n".join(_row(client, row) for client, row in enumerate(shown))
    more = f"<p>{len(counts) - MOST} more clients are not drawn.</p>" if len(counts) > MOST else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head>
<body><h1>Who holds what</h1><p>{escape(title)}</p><p>{escape(skew)}</p>
<p>Examples of a class (column) that a client (row) holds; the darker, the larger the class's share.</p>
<div><table><thead><tr><th>client</th>{head}<th>examples</th></tr></thead>
<tbody>
{rows}
</tbody></table></div>{more}</body></html>
"""


def _row(client: int, counts: np.ndarray) -> str:
    total = int(counts.sum())
    cells = "".join(
        f'<td class="held" style="--share:{count / total:.2f}">{count}</td>' if count else "<td></td>"
        for count in counts.tolist()
    )
    return f"<tr><th>{client}</th>{cells}<td>{total}</td></tr>"
