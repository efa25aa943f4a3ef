"""What a model is asked: prompts, answers, named positions and a metric."""

from .base import Task
from .docstring import docstring
from .greater_than import greater_than
from .handmade import gate
from .induction import induction
from .ioi import ioi

__all__ = ["Task", "default_task", "docstring", "gate", "greater_than", "induction", "ioi"]


def default_task(model, n: int = 50, seed: int = 0) -> Task:
    """The task that a model of the registry is made for, with ``n`` prompts."""
    name = getattr(model, "circuitlib_name", None)
    if name is None:
        raise ValueError("model: expected one that cl.load_model returned; for another model make a task yourself")
    from ..models import info

    makers = {
        "docstring": docstring,
        "gate": gate,
        "greater_than": greater_than,
        "induction": induction,
        "ioi": ioi,
    }
    return makers[info(name).tasks[0]](model, n=n, seed=seed)
