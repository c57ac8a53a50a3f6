"""Doctests of modules that import an extra are left out where that extra is not installed."""

from importlib.util import find_spec

collect_ignore_glob: list[str] = []
if find_spec("flwr") is None:
    collect_ignore_glob.append("src/fedkeep/deploy/*")
if find_spec("ray") is None:
    collect_ignore_glob.append("src/fedkeep/engine/*ray*")
