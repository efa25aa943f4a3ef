"""What every test shares: no hook may survive on a model, and the slow tests of a file run in one place."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
import weakref
from pathlib import Path

import pytest

_models: weakref.WeakSet = weakref.WeakSet()

# What the process was started from must not reach the commands that tests start: options of an outer make, which then says
# which folder it enters; and a SIGINT that is ignored, as it is for a command in the background of a script.
for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
    os.environ.pop(name, None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

ONE_BY_ONE = ("test_mutations", "test_determinism")  # their tests share nothing, and each takes minutes


def pytest_xdist_make_scheduler(config, log):
    """For ``--dist loadgroup``: the tests of a file stay together, since they share a browser, a cluster, an environment.

    The many first, the long single ones last, so that no worker is left alone for long. The groups of xdist 3.8 itself have no
    effect with pytest 9: it marks a test's group in a name that pytest no longer reads.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return nodeid if Path(file).stem in ONE_BY_ONE else file

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def no_hook_survives():
    """After each test, no TransformerLens model that any test made or loaded may still carry a hook.

    The fixture never imports TransformerLens itself, so a test that does without it stays fast.
    """
    _watch()
    yield
    _watch()
    left = {}
    for model in list(_models):
        hooks = {name: len(handles) for name, handles in model.list_hooks().items()}
        if hooks:
            left[getattr(model, "circuitlib_name", type(model).__name__)] = hooks
            model.reset_hooks(including_permanent=True)  # so that the next test isn't blamed
    assert not left, f"hooks left on a model: {left}"


def _watch() -> None:
    """Record each new TransformerBridge in ``_models``, from the moment that the class is loaded."""
    bridge = getattr(sys.modules.get("transformer_lens.model_bridge.bridge"), "TransformerBridge", None)
    if bridge is None or hasattr(bridge.__init__, "__wrapped__"):
        return
    build = bridge.__init__

    @functools.wraps(build)
    def build_and_record(self, *args, **kwargs):
        build(self, *args, **kwargs)
        _models.add(self)

    bridge.__init__ = build_and_record
    # Models from before the class was watched: the first test that loads one. A walk over all objects, once.
    _models.update(thing for thing in gc.get_objects() if issubclass(type(thing), bridge))
