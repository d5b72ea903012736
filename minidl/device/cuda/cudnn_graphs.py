"""Convolutions as graphs of cuDNN's frontend: listing the plans of one, and running one by name.

A graph has a single node; tensors have the numbers X, W and Y. A plan's name is its engine and knobs as cuDNN writes
them ("eng67_k2=5_..."), which the same version finds again. Which plans add in no fixed order, or on tensor cores, is
asked for by leaving these out: the frontend filters by notes, but does not tell them.

Knows cuDNN; no memory and no stream of its own. With the ``properties`` of another GPU, as JSON, plans are listed
without any GPU.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

from minidl.device.cuda.libraries import preload_cublas
from minidl.device.cuda.memory_format import channels_last_strides
from minidl.device.cuda.seam import Convolution, PlanInfo
from minidl.errors import DeviceError
from minidl.meta import row_major

X, W, Y = 1, 2, 3

preload_cublas()  # before cuDNN, of which some versions abort otherwise
import cudnn as cudnn  # noqa: E402 - for ``attention_graphs`` as well

TYPES = {"float32": cudnn.data_type.FLOAT, "float16": cudnn.data_type.HALF, "bfloat16": cudnn.data_type.BFLOAT16,
         "float64": cudnn.data_type.DOUBLE}


@dataclass(slots=True)
class Opened:
    """A graph whose plans are listed, and where in the list those are that were built."""

    graph: Any
    names: list[str]
    built: dict[str, int]


class CudnnGraphs:
    """Graphs of convolutions on the current GPU, or for the GPU of these properties."""

    def __init__(self, properties: str | None = None) -> None:
        self.version = cudnn.backend_version()
        self._properties = cudnn.create_device_properties(properties) if properties is not None else None
        self.handle = cudnn.create_handle() if properties is None else None
        self._open: dict[Convolution, Opened] = {}

    def plans(self, convolution: Convolution) -> list[PlanInfo]:
        """All plans that can be built, in the order of the heuristics; about 0.1 seconds."""
        every = self._built(self._graph(convolution, self._exact(convolution)))
        ordered = self._without(convolution, cudnn.numerical_note.NONDETERMINISTIC)
        plain = self._without(convolution, cudnn.numerical_note.TENSOR_CORE)
        return [PlanInfo(name, workspace, name in ordered, name not in plain)
                for name, workspace in dict(every).items()]

    def run(self, convolution: Convolution, plan: str, x: int, w: int, y: int, workspace: int, stream: int) -> None:
        """Run a convolution on operands at these addresses."""
        opened = self._open.get(convolution)
        if opened is None:
            graph = self._graph(convolution, self._exact(convolution))
            names = [graph.get_plan_name_at_index(i) for i in range(graph.get_execution_plan_count())]
            opened = self._open[convolution] = Opened(graph, names, {})
        index = opened.built.get(plan)
        if index is None:
            index = opened.built[plan] = self._build(opened, convolution, plan)
        cudnn.set_stream(handle=self.handle, stream=stream)  # costs nothing where it is the same
        opened.graph.execute_plan_at_index({X: x, W: w, Y: y}, workspace, index, self.handle)

    def close(self) -> None:
        """Give the library's handle back."""
        self._open.clear()
        if self.handle is not None:
            cudnn.destroy_handle(self.handle)
            self.handle = None

    def _exact(self, convolution: Convolution) -> list[Any]:
        """What a convolution must not do: tensor cores would round the factors of fp32 products."""
        if convolution.dtype == "float32" and not convolution.tf32:
            return [cudnn.numerical_note.TENSOR_CORE, cudnn.numerical_note.DOWN_CONVERT_INPUTS]
        return []

    def _without(self, convolution: Convolution, note: Any) -> set[str]:
        """The names of the plans that have not this note."""
        return {name for name, _ in self._built(self._graph(convolution, [*self._exact(convolution), note]))}

    def _build(self, opened: Opened, convolution: Convolution, plan: str) -> int:
        for index, name in enumerate(opened.names):
            if name == plan:
                with contextlib.suppress(Exception):  # the same name may come twice, and be barred once
                    opened.graph.build_plan_at_index(index)
                    return index
        raise DeviceError(f"cuDNN {self.version} has no plan {plan} for {convolution}: remove the file of timed plans")

    def _built(self, graph: Any) -> list[tuple[str, int]]:
        """Names and workspaces of the plans that can be built."""
        found = []
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
            except cudnn.cudnnGraphNotSupportedError:
                continue  # left out by its notes, or not for this shape
            found.append((graph.get_plan_name_at_index(index), graph.get_workspace_size_plan_at_index(index)))
        return found

    def _graph(self, c: Convolution, without: list[Any]) -> Any:
        """A graph with its list of plans, those left out that have one of these notes."""
        kind = TYPES[c.dtype]
        where = {"handle": self.handle} if self._properties is None else {"device_property": self._properties}
        compute = cudnn.data_type.DOUBLE if c.dtype == "float64" else cudnn.data_type.FLOAT
        graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=compute, compute_data_type=compute, **where)

        def strides(shape: tuple[int, ...]) -> list[int]:
            return list((channels_last_strides if c.channels_last else row_major)(shape))

        def tensor(shape: tuple[int, ...], uid: int) -> Any:
            return graph.tensor(dim=list(shape), stride=strides(shape), data_type=kind, uid=uid)
        window = {"pre_padding": list(c.padding), "post_padding": list(c.padding), "stride": list(c.stride),
                  "dilation": [1, 1]}
        if c.kind == "conv2d":
            out, shape, uid = graph.conv_fprop(image=tensor(c.x, X), weight=tensor(c.w, W), **window), c.y, Y
        elif c.kind == "conv2d_dgrad":
            out, shape, uid = graph.conv_dgrad(loss=tensor(c.y, Y), filter=tensor(c.w, W), **window), c.x, X
        else:
            out, shape, uid = graph.conv_wgrad(image=tensor(c.x, X), loss=tensor(c.y, Y), **window), c.w, W
        out.set_output(True).set_data_type(kind).set_dim(list(shape)).set_stride(strides(shape))
        out.set_uid(uid)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        except cudnn.cudnnGraphNotSupportedError as error:
            raise DeviceError(f"cuDNN {self.version} cannot run {c}: {error}") from None
        if without:
            graph.deselect_numeric_notes(without)
        return graph
