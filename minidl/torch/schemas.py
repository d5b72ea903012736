"""Effects of a PyTorch call besides its result: writes, random numbers, and state that no schema shows.

The tables hold facts that the schemas lack. A call that is in no table, and whose schema shows no write, is taken to
compute its results from its arguments alone.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

# Operation -> positions of the running statistics that it writes although its schema does not say so, and the position
# of its argument ``training``, which turns these writes on. Its results do not depend on the statistics then.
STATISTICS: dict[str, tuple[tuple[int, ...], int | None]] = {
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::miopen_batch_norm": ((3, 4), 5),
    "aten::_native_batch_norm_legit": ((3, 4), 5),
    "aten::_batch_norm_with_update": ((3, 4), None),  # it always writes
}

# Operations that a replay cannot repeat: they have state elsewhere, or change a tensor's storage or shape.
NEVER_AGAIN = frozenset({
    "aten::_cudnn_rnn", "aten::_cudnn_init_dropout_state", "aten::_cudnn_rnn_flatten_weight", "aten::miopen_rnn",
    "aten::set_", "aten::resize_", "aten::resize_as_", "aten::_resize_output_", "aten::record_stream",
})
# Operations that may add in another order each time on a GPU (torch.use_deterministic_algorithms lists them).
UNORDERED = frozenset({
    "aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_put", "aten::index_put_",
    "aten::_index_put_impl_", "aten::put_", "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce",
    "aten::scatter_reduce_", "aten::bincount", "aten::histc", "aten::cumsum", "aten::median", "aten::kthvalue",
})
# Operations whose results have no contents yet. A later call fills them, or code that no dispatch mode sees.
UNFILLED = frozenset({"aten::empty", "aten::empty_like", "aten::empty_permuted", "aten::empty_strided",
                      "aten::new_empty", "aten::new_empty_strided"})
NAMESPACES = ("aten", "prims")
# Overload -> position of the argument whose gradient PyTorch computes by another formula under a dispatch mode.
OTHER_GRADIENTS = {
    "aten.prod.default": 0, "aten.prod.dim_int": 0, "aten.masked_fill.Tensor": 2, "aten.masked_fill_.Tensor": 2,
    "aten.max.default": 0, "aten.min.default": 0, "aten.median.default": 0, "aten.nanmedian.default": 0,
    "aten.cumprod.default": 0, "aten.cumprod_.default": 0, "aten.linalg_lstsq.default": 0,
    "aten.linalg_pinv.atol_rtol_tensor": 0, "aten.linalg_polar.default": 0}
# These of complex numbers alone.
COMPLEX_ALONE = frozenset(name for name in OTHER_GRADIENTS if "cumprod" in name or "linalg" in name)


@dataclass(frozen=True)
class Schema:
    """The effects of a PyTorch operation that replays have to know.

    name      its name, such as ``aten::add_``; overload: its full name, such as ``aten.add_.Tensor``.
    view      True if its results share the bytes of an argument.
    writes    positions of the arguments that it writes; named_writes: their names, if they are passed by name.
    seeded    True if it draws from a random generator.
    again     True if equal arguments, and an equal state of that generator, give equal results.
    """

    name: str
    overload: str
    view: bool
    writes: tuple[int, ...]
    named_writes: tuple[str, ...]
    seeded: bool
    again: bool

    def again_on(self, device_type: str) -> bool:
        """True if equal arguments give bit-for-bit equal results on this type of device ("cpu" or "cuda")."""
        return self.again and (device_type == "cpu" or self.name not in UNORDERED)

    def other_gradient(self, args: tuple[Any, ...]) -> bool:
        """True if a gradient of this call has other bits when a dispatch mode is on in the backward pass."""
        position = OTHER_GRADIENTS.get(self.overload)
        if position is None or not torch.is_grad_enabled():
            return False
        return any(tensor.requires_grad and (tensor.is_complex() or self.overload not in COMPLEX_ALONE)
                   for tensor in tensors_in(args[position:position + 1]))

    def statistics(self, args: tuple[Any, ...]) -> tuple[int, ...]:
        """Return the positions of arguments that this call writes and whose old values do not affect its results."""
        positions, training = STATISTICS.get(self.name, ((), None))
        if training is not None and not (len(args) > training and args[training]):
            return ()
        return tuple(n for n in positions if n < len(args) and isinstance(args[n], torch.Tensor))


@cache
def schema_of(func: Any) -> Schema:
    """Return the ``Schema`` of a PyTorch operation, given as the overload that a dispatch mode receives."""
    found = func._schema
    written = [(n, a) for n, a in enumerate(found.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return Schema(
        found.name, str(func), bool(func.is_view), tuple(n for n, a in written if not a.kwarg_only),
        tuple(a.name for _, a in written), torch.Tag.nondeterministic_seeded in func.tags,
        func.namespace in NAMESPACES and found.name not in NEVER_AGAIN)


def tensors_in(args: Any, kwargs: Any = None) -> list[torch.Tensor]:
    """Return the tensors among the arguments of a call, and in lists and tuples among these."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found


def written_by(schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among a call's arguments that the call writes, running statistics included."""
    if not schema.writes and not schema.named_writes and schema.name not in STATISTICS:
        return []
    places = dict.fromkeys((*schema.writes, *schema.statistics(args)))
    found = [args[n] for n in places if n < len(args)]
    found += [kwargs[name] for name in schema.named_writes if name in kwargs]
    return tensors_in(found)
