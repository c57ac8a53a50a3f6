"""The handwritten digits that come with scikit-learn: real data without a download."""

from __future__ import annotations

import numpy as np

from fedkeep.data.raw import Raw, Scaling
from fedkeep.rng import stream


def read_digits() -> Raw:
    """1797 images of 8 x 8 pixels, a fixed fifth of every class as test part.

    Pixels 0 ... 16 are divided by 16, then normalised by the training part's mean and standard deviation.
    """
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    images, labels = load_digits(return_X_y=True)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        members = stream(0, "digits", client=label).permutation(np.flatnonzero(labels == label))
        test[members[: round(len(members) / 5)]] = True
    x, y = np.asarray(images).reshape(-1, 1, 8, 8), np.asarray(labels, dtype=np.int64)
    source = "scikit-learn's bundled handwritten digits (UCI), a fixed stratified 80/20 split"
    return Raw(x[~test], y[~test], x[test], y[test], 10, source, Scaling(16.0))
