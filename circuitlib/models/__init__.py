"""What is studied: shipped, hand-made and downloaded transformers behind one loader."""

from .load import load_model
from .registry import ModelInfo, info, models

__all__ = ["ModelInfo", "info", "load_model", "models"]
