"""The fixture that looks for hooks, tried on a stand-in for TransformerLens: loading the real one would cost seconds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FAKE = '''
import sys, types

class TransformerBridge:
    def __init__(self): self.hooks = {}
    def list_hooks(self): return self.hooks
    def reset_hooks(self, including_permanent=False): self.hooks = {}

def load():
    """What importing TransformerLens in the middle of a test does."""
    module = types.ModuleType("transformer_lens.model_bridge.bridge")
    module.TransformerBridge = TransformerBridge
    sys.modules[module.__name__] = module
    return TransformerBridge()

kept = []
def test_without_a_model(): pass
def test_first_model(): kept.append(load()); kept[0].hooks = {"a": [1]}
def test_clean_after_it(): pass
def test_later_model(): kept.append(TransformerBridge()); kept[1].hooks = {"b": [1, 2]}
def test_old_model_again(): kept[0].hooks = {"c": [1]}
def test_hook_taken_off():
    kept[0].hooks = {"d": [1]}
    kept[0].reset_hooks()
'''


def test_a_hook_left_behind_is_an_error_of_the_test_that_left_it(tmp_path):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_fake.py").write_text(FAKE, "utf8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    blamed = {line.split("::")[1].split(" ")[0] for line in done.stdout.splitlines() if line.startswith("ERROR ")}
    assert blamed == {"test_first_model", "test_later_model", "test_old_model_again"}
    assert "hooks left on a model: {'TransformerBridge': {'b': 2}}" in done.stdout
