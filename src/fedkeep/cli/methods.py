"""`fedkeep methods`: what there is to combine, and what each part does and sends."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from fedkeep import grammar, losses, server_opt
from fedkeep.calls import format_value
from fedkeep.cli.console import output, print_json, table
from fedkeep.method import Aggregator, Loss, Mechanism, Method, Part, ServerOptimizer

KINDS: dict[str, type[Part]] = {
    "loss": Loss,
    "mechanism": Mechanism,
    "aggregation": Aggregator,
    "server optimiser": ServerOptimizer,
}
TITLES = {
    "loss": "Losses: what a client minimises",
    "mechanism": "Mechanisms: what is added to local training",
    "aggregation": "Aggregations: how the server makes one model of many",
    "server optimiser": "Server optimisers: how the server applies the change; they follow an @",
}

NARROW = 90
STARTS = ("Sends:", "Differs from the paper:")  # lines of a docstring that begin a paragraph


def kind_of(part: type[Part]) -> str:
    """The kind of a part, in a word or two."""
    return next(name for name, kind in KINDS.items() if issubclass(part, kind))


def summary_of(part: type[Part]) -> str:
    """The first sentence of a docstring."""
    return " ".join(inspect.cleandoc(part.__doc__ or "").split("\n\n")[0].split())


def describe(name: str, maker: Callable[..., Any], part: type[Part]) -> dict[str, Any]:
    """One term of the grammar, as plain values."""
    known = inspect.signature(maker).parameters.values()
    return {
        "name": name,
        "kind": kind_of(part),
        "needs": [item.name for item in known if item.default is item.empty],
        "options": {item.name: item.default for item in known if item.default is not item.empty},
        "summary": summary_of(part),
        "sends": part.sends(),
        "text": inspect.cleandoc(part.__doc__ or ""),
    }


def terms() -> list[dict[str, Any]]:
    """All terms, by kind."""
    found = [describe(name, maker, grammar.DESCRIBES[name]) for name, maker in grammar.TERMS.items()]
    found += [describe(f"@{name}", kind, kind) for name, kind in grammar.SERVER.items()]
    return sorted(found, key=lambda term: list(KINDS).index(term["kind"]))


def signature(term: dict[str, Any]) -> str:
    """A term with all its options.

    >>> signature({"name": "ewc", "needs": ["lam"], "options": {"gamma": 0.9}})
    'ewc(lam=..., gamma=0.9)'
    """
    inside = [f"{key}=..." for key in term["needs"]]
    inside += [f"{key}={format_value(value)}" for key, value in term["options"].items()]
    return f"{term['name']}({', '.join(inside)})" if inside else term["name"]


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[METHOD]", help="Any method, e.g. scaffold+wsm.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """List what methods are made of; with a METHOD, take it apart: formulas, sources, what leaves the client.

    A method is terms joined by +, and may end in @ and a server optimiser. An option written as mu=... has no default.

    \b
    fedkeep methods
    fedkeep methods "fedprox(mu=0.01)+wsm@adam(lr=0.01)"
    """
    if name is None:
        show = print_json if as_json else _show_terms
        show(terms())
        return
    alone = {term["name"].removeprefix("@"): term for term in terms()}.get(name.strip().removeprefix("@"))
    if alone and (alone["needs"] or alone["kind"] == "server optimiser"):  # not a method yet, but something to explain
        print_json(alone) if as_json else _show_parts([{**alone, "name": signature(alone)}])
        return
    method = grammar.parse(name)
    parts = [describe(_term(part), type(part), type(part)) for part in method.parts]
    canonical = grammar.name_of(method)
    if as_json:
        print_json({"method": canonical, "parts": parts})
        return
    output().print(Text(canonical, "bold cyan"), soft_wrap=True)
    output().print()
    _show_parts(parts)
    _show_sent(parts)


def _term(part: Part) -> str:
    """A part as the grammar writes it."""
    if isinstance(part, Aggregator):
        return grammar.name_of(Method(losses.ce, part, server_opt.ServerSGD()))
    return ("@" if isinstance(part, ServerOptimizer) else "") + part.term()


def _silent(term: dict[str, Any]) -> bool:
    return term["sends"].startswith("nothing")


def _show_terms(found: list[dict[str, Any]]) -> None:
    console = output()
    for kind in KINDS:
        of_kind = [term for term in found if term["kind"] == kind]
        (_show_list if console.width < NARROW else _show_table)(console, TITLES[kind], of_kind)
        console.print()
    console.print(Text('Combine them: fedkeep run "scaffold+wsm", fedkeep run "fednova+tce@adam(lr=0.01)"', "dim"))
    console.print(Text("Explain one: fedkeep methods wsm", "dim"))


def _show_table(console: Console, title: str, found: list[dict[str, Any]]) -> None:
    something = any(not _silent(term) for term in found)
    shown = table("name and options", "what it does", *(["sends"] if something else []), title=title)
    for term in found:
        cells = [Text(signature(term), "cyan"), Text(term["summary"])]
        shown.add_row(*cells, *([Text("" if _silent(term) else term["sends"])] if something else []))
    console.print(shown)


def _show_list(console: Console, title: str, found: list[dict[str, Any]]) -> None:
    console.print(Text(title, "bold"))
    for term in found:
        console.print(Text(signature(term), "cyan"))
        console.print(Padding(Text(term["summary"]), (0, 0, 0, 2)))
        if not _silent(term):
            console.print(Padding(Text(f"Sends: {term['sends']}", "dim"), (0, 0, 0, 2)))


def _show_parts(parts: list[dict[str, Any]]) -> None:
    console = output()
    for part in parts:
        console.print(Text.assemble((part["kind"], "bold"), "  ", (part["name"], "cyan")))
        for indent, line in reflow(part["text"]):
            console.print(Padding(Text(line), (0, 0, 0, 4 + indent)))
        console.print()


def reflow(text: str) -> list[tuple[int, str]]:
    """A docstring as (indent, line) with prose joined to one line per paragraph; formulas keep their lines.

    >>> reflow("Pull\\nweights.\\n\\n    mu w\\nSends: nothing.")
    [(0, 'Pull weights.'), (0, ''), (4, 'mu w'), (0, 'Sends: nothing.')]
    """
    lines: list[tuple[int, str]] = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        begins = indent or not line or not lines or not lines[-1][1] or lines[-1][0] or line.startswith(STARTS)
        if begins:
            lines.append((indent, line.strip()))
        else:
            lines[-1] = (0, f"{lines[-1][1]} {line.strip()}")
    return lines


def _show_sent(parts: list[dict[str, Any]]) -> None:
    console = output()
    console.print(Text("What leaves a client in a round", "bold"))
    for part in parts:
        if not _silent(part):
            console.print(Padding(Text.assemble((part["name"], "cyan"), f": {part['sends']}"), (0, 0, 0, 4)))


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(methods)
