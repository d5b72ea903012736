"""Names tensors by the layers that made them: the dotted path of the module whose forward pass was running.

Temporary tensors are numbered by their position in the iteration, so a module's tensors are the numbers assigned
between the beginning and the end of its forward(). Nothing is recorded per operation, and nothing at all unless a
report asks for it. The calls of a batch in slices run later; there the slicer records the names.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minidl.executor import Executor
from minidl.nn import Module
from minidl.parts.sharding.sharder import shards_of
from minidl.parts.slicing.origins import Origins
from minidl.parts.slicing.slicer import slicer_of
from minidl.plan.trace import TensorId, Trace


class LayerNames:
    """Names by tensor id from the forward passes of the last iteration; parameters and buffers have their own names.

    In ``made`` the innermost module names a tensor; tensors of the network itself have the name of its class.
    """

    def __init__(self, model: Module, executor: Executor) -> None:
        self.owned = {shard.tensor_id: name for name, tensor in (*model.named_parameters(), *model.named_buffers())
                      for shard in shards_of(tensor)}
        self.made: dict[TensorId, str] = {}
        self._tracker = executor.tracker
        self._origins = slicer.origins if (slicer := slicer_of(executor)) is not None else None
        self._iteration = -1

    def noting(self, forward: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a module's forward(), wrapped so that it records under ``name`` which tensors it made."""
        tracker, origins = self._tracker, self._origins

        def run(*inputs: Any, **options: Any) -> Any:
            if tracker.iteration != self._iteration:
                self._iteration = tracker.iteration
                self.made.clear()
                if origins is not None:
                    origins.made.clear()
            first = tracker.temporaries
            with _within(origins, name):
                result = forward(*inputs, **options)
            for tensor_id in range(first, tracker.temporaries):
                self.made.setdefault(tensor_id, name)  # an inner module has ended already and named its tensors
            return result

        return run

    def of(self, trace: Trace) -> dict[TensorId, str]:
        """Return tensor -> layer for the tensors of a trace.

        A tensor of the backward pass gets the layer of a tensor that its call reads: a parameter's, else the layer that
        made the latest activation among them, else that of a gradient.
        """
        later = self._origins.made if self._origins is not None else []
        made = self.made | {tensor_id: name for name, ids in later for tensor_id in ids}
        names = self.owned | made
        for call in trace.calls:
            read = max((t for t in call.inputs if t in names), key=lambda t: (t in self.owned, t in made, t),
                       default=None)
            if read is not None:
                layer = names[read].rpartition(".")[0] if read in self.owned else names[read]
                for tensor_id in call.outputs:
                    names.setdefault(tensor_id, layer)
        return names


@contextmanager
def _within(origins: Origins | None, name: str) -> Iterator[None]:
    """Attribute the operations called inside the ``with`` block to this layer."""
    if origins is None:
        yield
        return
    before, origins.within = origins.within, name
    try:
        yield
    finally:
        origins.within = before


@contextmanager
def layer_names(model: Module, executor: Executor) -> Iterator[LayerNames]:
    """Record which module makes which tensor in the forward passes inside the ``with`` block; it costs little."""
    names = LayerNames(model, executor)
    modules: dict[Module, str] = {}
    for path, module in model.named_modules():
        modules.setdefault(module, path or type(module).__name__)
    for module, name in modules.items():
        module.forward = names.noting(module.forward, name)  # type: ignore[method-assign] # only of this instance
    try:
        yield names
    finally:
        for module in modules:
            del module.forward  # uncovers the class's method
