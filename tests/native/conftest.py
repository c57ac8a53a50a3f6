"""Kernels are tested as they are written for several kinds of processors; this one can run those for lesser ones."""

import pytest

from fedkeep.native.emit import Processor, processor


@pytest.fixture(scope="module", autouse=True, params=[None, Processor(8, 16), Processor(4, 32)], ids=str)
def kind(request):
    wanted = request.param or processor()
    if wanted.lanes > processor().lanes:
        pytest.skip(f"this processor has vectors of {processor().lanes} floats")
    with pytest.MonkeyPatch.context() as patch:
        for module in ("products", "images", "elementwise", "span"):
            patch.setattr(f"fedkeep.native.{module}.processor", lambda: wanted)
        yield wanted
