"""The five papers, reproduced: every table and figure is a recipe, run by `fedkeep reproduce`."""

from fedkeep.papers.recipe import Recipe, find, load, recipes
from fedkeep.papers.reproduce import Settings, reproduce

__all__ = ["Recipe", "Settings", "find", "load", "recipes", "reproduce"]
