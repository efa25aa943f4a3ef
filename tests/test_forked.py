"""Kernels that are forked are what kernels are: their own folder, environment and library, and none is left behind."""

from __future__ import annotations

import ast
import os
import time

import forked
import pytest

LOOK = """
import os, sys
import pandas
from matplotlib import get_backend
[os.getpid(), os.getcwd(), os.environ.get("WHO"), "circuitlib" in sys.modules, "torch" in sys.modules, get_backend(), hash("a"), pandas.options.display.max_columns]
"""


@pytest.fixture
def start(monkeypatch):
    from jupyter_client.manager import KernelManager

    monkeypatch.setenv("JUPYTER_PATH", forked.jupyter_path())
    running = []

    def start(folder, who: str):
        kernel = KernelManager(kernel_name=forked.NAME)
        running.append(kernel)
        kernel.start_kernel(cwd=str(folder), env={**os.environ, "WHO": who, "PYTHONPATH": str(folder)})
        client = kernel.client()
        client.start_channels()
        client.wait_for_ready(timeout=120)

        def run(code: str):
            heard = []
            reply = client.execute_interactive(code, output_hook=heard.append, timeout=120)
            assert reply["content"]["status"] == "ok", reply["content"]
            values = [m["content"]["data"]["text/plain"] for m in heard if m["msg_type"] == "execute_result"]
            return ast.literal_eval(values[-1]) if values else None

        return kernel, run

    yield start
    for kernel in running:
        if kernel.has_kernel:
            kernel.shutdown_kernel(now=True)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pid: int) -> bool:
    for _ in range(100):
        if not alive(pid):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_each_has_its_own_folder_environment_and_library(start, tmp_path):
    said = {}
    for who in ("one", "other"):
        (tmp_path / who).mkdir()
        (tmp_path / who / "circuitlib.py").write_text(f"NAME = {who!r}\n")
        kernel, run = start(tmp_path / who, who)
        pid, folder, named, imported, torch, backend, number, columns = run(LOOK)
        assert (folder, named) == (str(tmp_path / who), who)
        assert not imported and torch and "inline" in backend
        assert columns == 20  # in a kernel, pandas does not ask how wide a terminal is
        assert run("import circuitlib\ncircuitlib.NAME") == who
        said[who] = pid, number
    assert said["one"][0] != said["other"][0] and said["one"][1] == said["other"][1]


@pytest.mark.slow
def test_none_is_left_when_it_is_shut_down_or_killed(start, tmp_path):
    asked, run = start(tmp_path, "asked")
    pid = run("import os\nos.getpid()")
    asked.shutdown_kernel()
    assert gone(pid)
    killed, run = start(tmp_path, "killed")
    pid = run("import os\nos.getpid()")
    assert alive(pid)
    killed.shutdown_kernel(now=True)  # which kills the process that Jupyter started, and that only waits
    assert gone(pid)
