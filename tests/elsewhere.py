"""A device that this computer does not have: tensors that say they lie elsewhere, and are strict about it.

A tensor here holds an ordinary tensor of the CPU and calls its device "xla:0". An operation that mixes the two kinds is an error,
as it is on a GPU: only numbers (tensors without dimensions) and indices may come from the CPU. ``numpy`` is refused. So code
that runs here, and gives what it gives on the CPU, puts every tensor where it belongs.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "xla:0"
DEVICE = torch.device(NAME)
aten = torch.ops.aten
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
COPIES = {aten.copy_.default, aten._to_copy.default}


class There(torch.Tensor):
    """A tensor elsewhere."""

    @staticmethod
    def __new__(cls, here: torch.Tensor):
        shape = dict(strides=here.stride(), storage_offset=here.storage_offset(), dtype=here.dtype, device="cpu")
        return torch.Tensor._make_wrapper_subclass(cls, here.size(), **shape)

    def __init__(self, here: torch.Tensor):
        self.here = here

    def __tensor_flatten__(self):
        """That there is such a method lets ``Module.to`` change a weight in place, for all who hold it."""
        return ["here"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return There(inner["here"])

    @property
    def device(self):
        return DEVICE

    def __repr__(self):
        return f"There({self.here!r})"

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.Tensor.numpy or function is torch.Tensor.__array__:
            raise TypeError(f"can't convert {NAME} tensor to numpy; use Tensor.cpu() first")
        if function is torch.Tensor.tolist:
            return args[0].here.tolist()
        target = kwargs.get("device", args[1] if len(args) > 1 else None)
        if isinstance(target, torch.Tensor):
            target = target.device
        if function is torch.Tensor.cpu:
            target = "cpu"
        if function in (torch.Tensor.cpu, torch.Tensor.to) and str(target) == "cpu":
            here = Back.apply(args[0])
            return here.to(dtype) if isinstance(dtype := next((a for a in args[2:]), None), torch.dtype) else here
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return dispatched(function, args, kwargs or {})


class Back(torch.autograd.Function):
    """To the CPU, and gradients the other way."""

    @staticmethod
    def forward(ctx, there):
        return there.here.clone()

    @staticmethod
    def backward(ctx, gradient):
        return There(gradient)


class Elsewhere(TorchDispatchMode):
    """While it is on, the device exists."""

    def __enter__(self):
        torch._C._set_only_lift_cpu_tensors(
            True
        )  # torch.tensor(…, device=…) makes its tensor here first, and then asks to copy it
        torch.__future__.set_overwrite_module_params_on_conversion(
            True
        )  # a module gets new weights, not new content for the old
        return super().__enter__()

    def __exit__(self, *error):
        torch._C._set_only_lift_cpu_tensors(False)
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return dispatched(function, args, kwargs or {})


def dispatched(function, args, kwargs):
    """One operation: on the tensors that are held, after a look at where they say they are."""
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    there = [one for one in tensors if isinstance(one, There)]
    target = kwargs.get("device")
    asked = target is not None and torch.device(target).type == DEVICE.type
    if asked:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    backwards = torch._C._current_graph_task_id() != -1  # PyTorch's own formulas, which don't know of this device
    if there and function not in COPIES and not backwards:
        check(function, args, tensors)
    args, kwargs = tree_map_only(There, lambda one: one.here, (args, kwargs))
    result = function(*args, **kwargs)
    if function._schema.name.endswith("_") and not function._schema.name.endswith("__"):
        return in_place(function, result, there, tensors)
    stays = target is None or asked
    return tree_map_only(torch.Tensor, There, result) if asked or (there and stays) else result


def in_place(function, result, there, tensors):
    """An operation that changes its first argument gives that argument."""
    return tensors[0]


def check(function, args, tensors) -> None:
    strangers = [one for one in tensors if not isinstance(one, There) and one.dim() > 0]
    if strangers and function not in INDEXING:
        raise RuntimeError(f"{function}: expected all tensors on the same device, found {NAME} and cpu")
    if function in INDEXING and not isinstance(args[0], There):
        raise RuntimeError(f"{function}: indices on {NAME} for a tensor on cpu")
    if function in INDEXING and len(args) > 2 and not isinstance(args[2], There) and args[2].dim() > 0:
        raise RuntimeError(f"{function}: values on cpu for a tensor on {NAME}")
