from __future__ import annotations

import pytest

from papers.tiny_data import write_tiny_root


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory):
    """A data root that the tests write themselves."""
    return write_tiny_root(tmp_path_factory.mktemp("data"))
