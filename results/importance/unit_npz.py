"""MNIST with pixels between 0 and 1, not standardised: the data of the notes to Tables 2 and 3.

python results/importance/unit_npz.py FOLDER_OF_THE_IDX_FILES unit.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fedkeep.data.idx import MNIST_SCALING, read_images

folder, out = sys.argv[1:]
raw = read_images(Path(folder), MNIST_SCALING, "MNIST")
unit = {"x_train": raw.train_x, "x_test": raw.test_x}
np.savez(out, **{k: (v / 255).astype(np.float32) for k, v in unit.items()}, y_train=raw.train_y, y_test=raw.test_y)
