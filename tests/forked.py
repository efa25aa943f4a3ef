"""Kernels that start at once: forked from a process that has loaded PyTorch and TransformerLens.

For tests that run chapters dozens of times, each time on another circuitlib: importing the libraries below it is most of the work
of a run that fails at its first cells. circuitlib itself is imported by every kernel anew.

``jupyter_path()`` starts that process, and is the folder in which Jupyter finds the kernel called "forked". What Jupyter starts
is a process of a few milliseconds, ``ask``: it passes on the wish, and ends when the kernel ends. When it is killed, the kernel is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

NAME = "forked"
LOADED = (
    "torch",
    "transformer_lens.model_bridge",
    "pandas",
    "safetensors.torch",
    "ipykernel.kernelapp",
)
BACKEND = "module://matplotlib_inline.backend_inline"  # as in any kernel


# In the test ---------------------------------------------------------------------------------------


def jupyter_path() -> str:
    """The folder for JUPYTER_PATH. The process is started with the first call and ends with this one."""
    global _folder
    if _folder is None:
        _folder = _serving()
    return _folder


_folder: str | None = None


def _serving() -> str:
    import atexit
    import subprocess
    import tempfile
    import time
    from pathlib import Path

    folder = Path(tempfile.mkdtemp(prefix="kernels-"))
    at = str(folder / "socket")
    spec = {"argv": [sys.executable, "-S", "-E", __file__, "ask", at, "-f", "{connection_file}"], "language": "python"}
    (folder / "kernels" / NAME).mkdir(parents=True)
    (folder / "kernels" / NAME / "kernel.json").write_text(json.dumps({**spec, "display_name": NAME}))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "MPLBACKEND": BACKEND}
    log = open(folder / "log", "w")  # noqa: SIM115 (as long as the process lives)
    server = subprocess.Popen([sys.executable, "-P", __file__, "serve", at], env=environment, stdout=log, stderr=log)
    atexit.register(server.wait)
    atexit.register(server.terminate)  # called first
    for _ in range(1800):
        if os.path.exists(at):
            return str(folder)
        assert server.poll() is None, (folder / "log").read_text()
        time.sleep(0.1)
    raise AssertionError(
        "no kernel can be forked: the process that loads the libraries is not ready after three minutes"
    )


# What Jupyter starts -------------------------------------------------------------------------------


def ask(at: str, arguments: list[str]) -> int:
    """Have a kernel forked, and wait for its end. What comes here by signal goes to the kernel."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(at)
    wish = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    server.sendall(json.dumps(wish).encode() + b"\n")
    answers = server.makefile()
    kernel = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(kernel, number))
    return int(answers.readline() or 1)


# The process that has everything loaded ------------------------------------------------------------


def serve(at: str) -> None:
    """Fork a kernel for each wish; one thread, so that a fork takes no lock along."""
    import builtins
    import importlib
    import select
    from types import SimpleNamespace

    builtins.get_ipython = lambda: SimpleNamespace(
        kernel=None
    )  # pandas asks, when it is imported, whether it is in a kernel
    for name in LOADED:
        importlib.import_module(name)
    del builtins.get_ipython
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(at + ".new")
    listener.listen()
    os.rename(at + ".new", at)  # from here on it can be asked
    kernels: dict[int, socket.socket] = {}
    while True:
        for ready in select.select([listener, *kernels.values()], [], [], 0.05)[0]:
            if ready is listener:
                asking = listener.accept()[0]
                wish = json.loads(asking.makefile().readline())
                kernel = os.fork()
                if kernel == 0:
                    for one in (listener, asking, *kernels.values()):
                        one.close()
                    code = 1
                    try:
                        code = _kernel(**wish)
                    finally:
                        os._exit(code)
                kernels[kernel] = asking
                asking.sendall(f"{kernel}\n".encode())
            else:  # whoever asked is gone
                os.kill(next(kernel for kernel, asking in kernels.items() if asking is ready), signal.SIGKILL)
        for kernel in [*kernels]:
            ended, status = os.waitpid(kernel, os.WNOHANG)
            if ended:
                with kernels.pop(kernel) as asking:
                    try:
                        asking.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                    except BrokenPipeError:
                        pass


def _kernel(arguments: list[str], folder: str, environment: dict[str, str]) -> int:
    """What ``python -m ipykernel_launcher`` does, in the folder and the environment of whoever asked."""
    os.setsid()
    os.chdir(folder)
    environment.pop("JPY_PARENT_PID", None)  # that is not the parent here: ``serve`` sees to it that no kernel is left
    os.environ.clear()
    os.environ.update({"MPLBACKEND": BACKEND, **environment})
    sys.path[:0] = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance(argv=arguments)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(ask(sys.argv[2], sys.argv[3:]))
    serve(sys.argv[2])
