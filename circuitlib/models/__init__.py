"""What is studied: shipped, hand-made and downloaded transformers behind one loader."""

import sys
import types

from .load import load_model
from .registry import ModelInfo, info, models, training_log

__all__ = ["ModelInfo", "info", "load_model", "models", "training_log"]


class _CallableModule(types.ModuleType):
    """``cl.models()`` is the table of models, ``circuitlib.models`` this package: both names are wanted."""

    def __call__(self):
        return models()


sys.modules[__name__].__class__ = _CallableModule
