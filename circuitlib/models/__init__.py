"""What is studied: shipped, hand-made and downloaded transformers behind one loader."""

import sys
import types

from .errors import Missing, NoNetwork
from .hub import download_models, write_manifest
from .load import load_model
from .registry import ModelInfo, info, model_card, models, training_log
from .untrained import untrained_model

__all__ = [
    "Missing",
    "ModelInfo",
    "NoNetwork",
    "download_models",
    "info",
    "load_model",
    "model_card",
    "models",
    "training_log",
    "untrained_model",
    "write_manifest",
]


class _CallableModule(types.ModuleType):
    """``cl.models()`` is the table of models, ``circuitlib.models`` this package: both names are wanted."""

    def __call__(self):
        return models()


sys.modules[__name__].__class__ = _CallableModule
