"""circuitlib: the small package under the book "Transformer circuits".

``import circuitlib as cl`` is instant: torch and TransformerLens are loaded when a name that needs them is used.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

# Every public name and the module that defines it.
_PUBLIC = {
    "models": "models",
    "load_model": "models",
    "untrained_model": "models",
    "HELD_OUT_NAMES": "models.words",
    "model_card": "models",
    "training_log": "models",
    "training_recipe": "models.training",
    "Task": "tasks",
    "default_task": "tasks",
    "docstring": "tasks",
    "induction": "tasks",
    "template_task": "tasks.own",
    "examine": "tasks.own",
    "load_task": "tasks.jsonl",
    "save_task": "tasks.jsonl",
    "ioi": "tasks",
    "greater_than": "tasks",
    "Graph": "graph",
    "Edge": "graph",
    "Circuit": "graph",
    "random_circuit": "graph",
    "jaccard": "graph",
    "known_circuit": "circuits",
    "known_effects": "circuits",
    "reference_circuit": "circuits",
    "published_circuit": "published",
    "Engine": "engine",
    "activation_patching": "patching",
    "path_patching": "patching",
    "path_patching_sweep": "patching",
    "path_patching_by_position": "patching",
    "input_effects": "patching",
    "composition_graph": "patching",
    "head_scores": "heads",
    "repeated_tokens": "heads",
    "roles": "heads",
    "direct_logit_attribution": "heads",
    "head_attribution": "heads",
    "self_repair": "heads",
    "ov_circuit": "heads",
    "ov_copying": "heads",
    "composition": "heads",
    "attention_between": "heads",
    "head_effects": "heads",
    "EdgeScores": "discovery",
    "exact": "discovery",
    "eap": "discovery",
    "eap_ig": "discovery",
    "acdc": "discovery",
    "acdc_sweep": "discovery",
    "faithfulness": "evaluation",
    "faithfulness_curve": "evaluation",
    "minimality": "evaluation",
    "completeness": "evaluation",
    "random_baseline": "evaluation",
    "cpr": "evaluation",
    "cmd": "evaluation",
    "roc": "evaluation",
    "auc": "evaluation",
    "evaluate": "evaluation",
    "stability": "evaluation",
    "compare": "evaluation",
    "random_scores": "evaluation",
    "results": "tables",
    "read_grid": "sweep",
    "run_cell": "sweep",
    "run_sweep": "sweep",
    "plot_heads": "plotting",
    "plot_residual": "plotting",
    "plot_attention": "plotting",
    "plot_lines": "plotting",
    "plot_circuit": "plotting",
    "reproduce": "reproduction",
    "published_figures": "reproduction",
    "plot_roc": "plotting",
    "plot_faithfulness": "plotting",
    "plot_compare": "plotting",
    "set_attention_mode": "plotting",
    "explore": "explorer",
    "edit_prompts": "widgets",
    "view_attention": "widgets",
    "ablate_heads": "widgets",
    "check": "exercises",
    "require_fresh_kernel": "doctor",
}

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'circuitlib' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value  # so that a function wins over the submodule of the same name
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
