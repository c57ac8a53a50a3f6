"""How large is a report of 5 methods x 3 seeds x 200 rounds x 100 clients, and how fast does a browser open it?

    python benchmarks/report_size.py [--fraction 0.1] [--forgetting cohort|all] [--keep DIR]

Writes run directories with made-up records (nothing is trained), makes their report, prints its size and the time it
took, and, where there is a Chromium with chromedriver and selenium is installed, how long the page takes to open: until
the first words are there, until it can be used, and until every figure is drawn, each the best of three. The aim: under
15 MB, open in under 3 s. On a busy machine the times say little.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fedkeep.experiment.config import Config
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.experiment.tables import History
from fedkeep.metrics.measure import measure
from fedkeep.report import write_report
from fedkeep.simulate import RoundRecord

METHODS = ("fedavg", "fedavg+wsm", "scaffold", "fedwavg(alpha=0.3)", "importance(lam=100)")
CLASSES, HELD_OUT = 10, 50


def write_run(path: Path, config: Config) -> None:
    """A finished run directory whose records are drawn at random."""
    rng = np.random.default_rng(config.seed)
    counts = np.stack([rng.multinomial(450, rng.dirichlet(np.full(CLASSES, 0.1))) for _ in range(config.clients)])
    client, label = np.indices(counts.shape)
    partition = {
        "client": client.ravel(),
        "class": label.ravel(),
        "train": counts.ravel(),
        "held_out": counts.ravel() // 9,
    }
    directory = RunDirectory(path)
    directory.open(config, lambda: {"command": ["fedkeep", "run", config.method]}, partition)
    history = History()
    for number in range(1, config.rounds + 1):
        history.add(record(rng, number, config))
    weights = ({"w": torch.zeros(1)}, {})
    directory.finish({"outcome": "finished", "round": config.rounds}, history.tables(), weights, weights)
    directory.close()


def record(rng: np.random.Generator, number: int, config: Config) -> RoundRecord:
    """One round's record: who is right is drawn at random, more often as the rounds go by."""
    cohort = np.sort(rng.choice(config.clients, max(1, round(config.clients * config.fraction)), replace=False))
    owners = np.repeat(np.arange(config.clients), HELD_OUT)
    labels = rng.integers(CLASSES, size=len(owners))
    skill = 0.2 + 0.7 * number / config.rounds
    probed = np.arange(len(owners)) if config.forgetting == "all" else np.flatnonzero(np.isin(owners, cohort))
    local = {int(k): rng.random(len(probed)) < skill * 0.6 for k in cohort}
    forgettable = {int(k): float(rng.integers(450)) for k in cohort}
    before, after = (rng.random(len(owners)) < skill for _ in range(2))
    measured = measure(number, labels, owners, CLASSES, before, local, after, forgettable, probed)
    return RoundRecord(number, tuple(map(int, cohort)), skill, 2 - skill, skill, 1.0, 10**6, 10**6, (), measured)


def open_in_browser(page: Path) -> tuple[float, float, float]:
    """Seconds until the first words are there, the page can be used, and every figure is drawn; a fresh browser."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or ""))
        try:
            driver.get(page.resolve().as_uri())
            drawn = None
            while drawn is None:
                time.sleep(0.1)
                drawn = driver.execute_script("return document.documentElement.dataset.drawn")
            painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            script = f"return [{painted}, Number(document.documentElement.dataset.ready), {drawn}]"
            words, usable, figures = (milliseconds / 1000 for milliseconds in driver.execute_script(script))
            return words, usable, figures
        finally:
            driver.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--fraction", type=float, default=0.1)
    parser.add_argument("--forgetting", choices=("cohort", "all"), default="cohort")
    parser.add_argument("--keep", type=Path, help="write the runs and the report here, and keep them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        for method in METHODS[: options.methods]:
            for seed in range(options.seeds):
                config = Config(
                    method=method,
                    seed=seed,
                    rounds=options.rounds,
                    clients=options.clients,
                    fraction=options.fraction,
                    forgetting=options.forgetting,
                )
                write_run(folder / f"{method}-{seed}", config)
        started = time.perf_counter()
        page = write_report([folder], folder / "report.html")
        print(f"written in {time.perf_counter() - started:.1f} s")
        print(f"size {page.stat().st_size / 1e6:.2f} MB (aim: under 15)")
        if not (shutil.which("chromium") and shutil.which("chromedriver")):
            print("no Chromium with chromedriver here: opening was not measured", file=sys.stderr)
            return
        times = [open_in_browser(page) for _ in range(3)]
        words, usable, figures = (min(column) for column in zip(*times, strict=True))
        print(f"words after {words:.2f} s, usable after {usable:.2f} s (aim: under 3), figures after {figures:.2f} s")


if __name__ == "__main__":
    main()
