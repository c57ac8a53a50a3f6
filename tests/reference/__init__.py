"""Slow twins: every method written out from its paper in plain numpy, float64, with loops.

Nothing here is fast and nothing here is clever. Each file is meant to be read beside one paper, and the fast
implementation is tested against it. A model is a dict from name to array. A gradient oracle is a callable
`grad(w, batch) -> dict` with the names of `w`.
"""
