"""The ServerApp: from a Flower run's config to a finished run directory."""

from __future__ import annotations

import importlib.metadata
import math
import secrets
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkeep.deploy.answers import Greeting, take_greeting
from fedkeep.deploy.exchange import Exchange
from fedkeep.deploy.options import Options, from_run_config
from fedkeep.deploy.scene import ServerScene, server_scene
from fedkeep.deploy.sent import statement, warn_of_probe
from fedkeep.deploy.server import NetworkFederation
from fedkeep.errors import FedKeepError, RunError
from fedkeep.experiment.about import about
from fedkeep.experiment.run import Run, carry_out, load_run, quiet_torch
from fedkeep.experiment.rundir import RunDirectory
from fedkeep.simulate import RoundRecord

MARK = "fedkeep | "  # begins every line meant for people
Say = Callable[[str], None]


def say(line: str) -> None:
    """Print a line where Flower's log and `fedkeep deploy local` find it."""
    print(MARK + " ".join(line.split()), flush=True)


def serve(grid: Grid, run_config: Mapping[str, Any], tell: Say = say) -> Run:
    """Run a federation over a grid from its config, or go on with the one in its run directory."""
    config, options = from_run_config(run_config)
    directory = RunDirectory(Path(options.out).expanduser().absolute()) if options.out else None
    if directory and directory.exists() and (outcome := directory.outcome()):
        directory.same_experiment(directory.config(), config)
        tell(f"{directory.path}: {outcome['outcome']} after round {outcome['round']} already")
        return load_run(directory.path, directory.notes)
    with quiet_torch():
        scene = server_scene(config, options)
        federation = NetworkFederation(scene, _exchange(grid, scene, tell))
        _announce(scene, federation, tell)
        labels = scene.labels if scene.labels is not None else _own_labels(federation, directory)
        try:
            if directory:
                federation.experiment = _open(directory, federation, labels)
                federation.exchange.say = _told(tell, directory)
            return carry_out(config, federation, directory, _listener(scene, tell), lambda: _remarks(federation))
        finally:
            if directory:
                directory.close()


def _exchange(grid: Grid, scene: ServerScene, tell: Say) -> Exchange:
    private, measured = scene.options.private, scene.config.forgetting != "off"
    return Exchange(
        grid,
        scene.options.client_names(scene.config.clients),
        scene.options.time_limit,
        known=_known(scene),
        say=tell,
        read_greeting=lambda records: take_greeting(records, scene.classes, private, measured),
    )


def _known(scene: ServerScene) -> dict[int, Greeting]:
    """What the server knows of the clients itself, because the data is one of FedKeep's own sets."""
    if scene.labels is None:
        return {}
    names = scene.options.client_names(scene.config.clients)
    examples = np.bincount(scene.labels["client"], scene.labels["train"]).astype(int).tolist()
    private = scene.options.private
    return {k: Greeting(name, None if private else examples[k]) for k, name in enumerate(names)}


def _announce(scene: ServerScene, federation: NetworkFederation, tell: Say) -> None:
    config, options = scene.config, scene.options
    tell(f"{config.method}: {config.rounds} rounds, {scene.cohort_size} of {config.clients} clients in each")
    if options.probe:
        tell(warn_of_probe(options.client_names(config.clients), config.forgetting == "all"))
    if federation.privacy:
        tell(federation.privacy.describe(config.rounds))


def _open(directory: RunDirectory, federation: NetworkFederation, labels: dict[str, np.ndarray]) -> str:
    """Open the run directory; gives the name under which clients keep their memory of this run."""
    scene = federation.scene
    config, options = scene.config, scene.options

    def describe() -> dict[str, Any]:
        deployment = {
            "experiment": secrets.token_hex(8),
            "options": options.fixed(),
            "names": options.client_names(config.clients),
            "sends": statement(scene.method, options, config, federation.privacy),
            "flwr": importlib.metadata.version("flwr"),
        }
        return {**about(shlex.split(options.command) or ["flwr", "run"]), "deployment": deployment}

    directory.open(config, describe, labels)
    here = directory.about().get("deployment", {})
    _same_options(directory.path, here.get("options", {}), options)
    return str(here.get("experiment") or secrets.token_hex(8))


def _same_options(path: Path, there: Mapping[str, Any], options: Options) -> None:
    for key, value in options.fixed().items():
        if key in there and there[key] != value:
            raise RunError(
                f"{path}: holds another deployment ({key} is {there[key]!r} there, {value!r} here); choose another out"
            )


def _own_labels(federation: NetworkFederation, directory: RunDirectory | None) -> dict[str, np.ndarray]:
    """Who holds which label as far as clients have said so; a run that goes on keeps the table it began with."""
    scene, exchange = federation.scene, federation.exchange
    if directory and directory.exists():
        table = directory.partition()
        return {name: table.column(name).to_numpy() for name in table.column_names}
    exchange.wait_for(set(range(federation.clients)), scene.options.min_replies, scene.options.start_wait)
    told = {k: g for k, g in sorted(exchange.greetings.items()) if g.train is not None and g.held_out is not None}
    client, label = np.meshgrid(np.array(list(told), np.int64), np.arange(scene.classes), indexing="ij")
    train = np.array([greeting.train for greeting in told.values()], np.int64)
    held_out = np.array([greeting.held_out for greeting in told.values()], np.int64)
    return {"client": client.ravel(), "class": label.ravel(), "train": train.ravel(), "held_out": held_out.ravel()}


def _told(tell: Say, directory: RunDirectory) -> Say:
    def both(line: str) -> None:
        tell(line)
        directory.log(line)

    return both


def _listener(scene: ServerScene, tell: Say) -> Callable[[RoundRecord], None]:
    def listen(record: RoundRecord) -> None:
        row = record.row()
        answered = len(record.cohort) - int(row["missing"]) - int(row["refused"]) - len(record.left_out)
        parts = [f"round {record.round}/{scene.config.rounds}", f"{answered} of {len(record.cohort)} clients"]
        for name, word in (("accuracy", "accuracy"), ("validation_accuracy", "held-out accuracy")):
            if not math.isnan(row[name]):
                parts.append(f"{word} {row[name]:.3f}")
        if not math.isnan(row.get("forgetting", math.nan)):
            parts.append(f"forgetting {row['forgetting']:.3f}")
        if "epsilon" in row:
            parts.append(f"epsilon {row['epsilon']:.3g}")
        tell(", ".join([*parts, f"{record.seconds:.1f} s"]))

    return listen


def _remarks(federation: NetworkFederation) -> dict[str, Any]:
    """What the outcome of a deployment says beyond that of a simulation."""
    scene = federation.scene
    remarks: dict[str, Any] = {"deployment": asdict(scene.options), "failures": federation.failures()}
    if federation.privacy:
        remarks["privacy"] = federation.privacy.report(federation.state.round)
    return remarks


def make_app() -> ServerApp:
    """The ServerApp of every FedKeep deployment."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            run = serve(grid, context.run_config)
        except FedKeepError as error:
            say(f"error: {error}")
            raise
        for note in run.notes:
            say(f"note: {note}")
        say(f"finished{f', saved in {run.directory}' if run.directory else ''}")

    return app


app = make_app()
