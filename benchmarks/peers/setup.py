"""Install each peer into an environment of its own, benchmarks/.envs/<peer>.

    python benchmarks/peers/setup.py            all of them
    python benchmarks/peers/setup.py pfl        only some

torch comes first, so that nothing pulls another build of it; its version is the project's (constraints.txt).
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / ".envs"
CONSTRAINTS = HERE.parent.parent / "constraints.txt"
PACKAGES = {
    "flower": ("flwr[simulation]==1.41.0",),
    "pfl": ("pfl[pytorch]==0.6.0",),
    "fedjax": ("fedjax==0.0.17",),
    "fedlab": ("fedlab==1.3.0",),
}
WITHOUT_TORCH = ("fedjax",)


def torch_pin() -> str:
    """The project's torch, from constraints.txt."""
    return next(line.split()[0] for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))


def interpreter(peer: str) -> Path:
    """Where the Python of a peer's environment is, or would be."""
    return ENVIRONMENTS / peer / "bin" / "python"


def install(peer: str) -> None:
    """Make one environment. A half-made one is completed."""
    if not interpreter(peer).exists():
        venv.create(ENVIRONMENTS / peer, with_pip=True)
    pip = [str(interpreter(peer)), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    torch = [] if peer in WITHOUT_TORCH else [torch_pin()]
    if torch:
        subprocess.run([*pip, *torch], check=True)
    subprocess.run([*pip, *PACKAGES[peer], *torch], check=True)


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(PACKAGES))
    if unknown:
        print(f"unknown peer {', '.join(unknown)}; known: {', '.join(PACKAGES)}", file=sys.stderr)
        return 2
    failed = []
    for peer in names or PACKAGES:
        print(f"{peer}: {' '.join(PACKAGES[peer])} ...", flush=True)
        try:
            install(peer)
        except subprocess.CalledProcessError as error:
            print(f"{peer}: not installed ({error}); the benchmark will skip it", file=sys.stderr)
            failed.append(peer)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
