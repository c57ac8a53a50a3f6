"""For all tests: doctests of an extra that is not installed are left out, and Ctrl-C works as it does in a terminal."""

import signal
import threading
from importlib.util import find_spec

collect_ignore_glob: list[str] = []
if find_spec("flwr") is None:
    collect_ignore_glob.append("src/fedkeep/deploy/*")
if find_spec("ray") is None:
    collect_ignore_glob.append("src/fedkeep/engine/*ray*")

# started in the background by a shell, we and all our children would ignore it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
