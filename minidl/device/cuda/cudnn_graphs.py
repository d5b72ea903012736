"""Convolutions as graphs of cuDNN's frontend: listing the plans of a graph, and running a plan by name.

A graph has a single node; its tensors have the uids X, W and Y. A plan's name is its engine and knobs as cuDNN writes
them ("eng67_k2=5_..."); the same version of cuDNN finds it again. The frontend filters plans by their notes but does
not tell the notes. So plans without a fixed order of sums, or with tensor cores, are found by listing the plans without
them. Engines that compile at build time are left out: with a driver that takes half a second per convolution.

A plan is found by name in a graph without filters, because filters walk over all plans at every run. Plans of one
convolution share that graph while they are opened one after the other, as they are to be timed: a graph takes 5 ms.

Knows cuDNN; no memory and no stream of its own. With the ``properties`` of another GPU, as JSON, plans are listed
without any GPU.
"""

from collections.abc import Callable
from typing import Any

from minidl.device.cuda.libraries import preload
from minidl.device.cuda.memory_format import channels_last_strides
from minidl.device.cuda.seam import Convolution, PlanInfo
from minidl.errors import DeviceError, DeviceShort
from minidl.meta import row_major

X, W, Y = 1, 2, 3
KNOWN_FRONTEND = "1.28."  # the version whose graphs ``runner`` calls below their Python layer

preload()  # before cuDNN: some versions abort without cuBLAS, and some cannot compile without NVRTC
import cudnn as cudnn  # noqa: E402 - for ``attention_graphs`` as well

TYPES = {"float32": cudnn.data_type.FLOAT, "float16": cudnn.data_type.HALF, "bfloat16": cudnn.data_type.BFLOAT16,
         "float64": cudnn.data_type.DOUBLE}


SHORT = ("ALLOC_FAILED", "OUT_OF_MEMORY", "out of memory")  # in messages of cuDNN, the driver and the runtime
Execute = Callable[[dict[int, int], int, Any], None]  # (addresses by number, workspace, handle)


def short_of_memory(words: str) -> bool:
    """Return True if an error message says that device memory was short."""
    return any(short in words for short in SHORT)


def known_frontend() -> bool:
    """Return True if the frontend's version is the one whose inner functions ``runner`` calls."""
    return bool(cudnn.__version__.startswith(KNOWN_FRONTEND))


def runner(graph: Any, index: int) -> Execute:
    """Return a function that runs a built plan, by inner functions of a known version of cuDNN's frontend.
    The frontend's ``execute``, used for other versions, looks up every operand in each call: that takes longer than the
    host's other work for a convolution."""
    if not known_frontend():
        execute: Execute = graph.execute
        return execute
    issue, place = graph._lowered_graph._execute_plan_at_index, graph._plans[index].cpp_index

    def run(addresses: dict[int, int], workspace: int, handle: Any) -> None:
        issue(addresses, workspace, place, handle.backend_handle)
    return run


class CudnnGraphs:
    """Graphs of convolutions on the current GPU, or for the GPU of these properties."""

    def __init__(self, properties: str | None = None) -> None:
        self.version = cudnn.backend_version()
        self._properties = cudnn.create_device_properties(properties) if properties is not None else None
        self.handle = cudnn.create_handle() if properties is None else None
        # By id() of the convolution, which takes less time than a hash. The convolution is kept so the id stays valid.
        self._open: dict[tuple[int, str], tuple[Convolution, Execute]] = {}
        self._last: tuple[Convolution, Any] | None = None  # the graph in which a plan was opened last

    def plans(self, convolution: Convolution) -> list[PlanInfo]:
        """Return the plans that can be built, in the order of the heuristics; it takes about 0.1 seconds.
        Left out are plans that compile code and, if fp32 must be exact, plans that round the factors of its products.
        Raises DeviceError if cuDNN fails."""
        every = self._built(self._graph(convolution, self._exact(convolution)))
        ordered = self._without(convolution, cudnn.numerical_note.NONDETERMINISTIC)
        plain = self._without(convolution, cudnn.numerical_note.TENSOR_CORE)
        return [PlanInfo(name, workspace, name in ordered, name not in plain)
                for name, workspace in dict(every).items()]

    def run(self, convolution: Convolution, plan: str, x: int, w: int, y: int, workspace: int, stream: int) -> None:
        """Run a convolution by the plan of this name, on operands at these addresses.
        Raises DeviceError if there is no such plan or it fails; DeviceShort if device memory is short."""
        opened = self._open.get((id(convolution), plan))
        if opened is None:
            opened = self._open[id(convolution), plan] = convolution, self._built_as(convolution, plan)
        try:
            cudnn.set_stream(handle=self.handle, stream=stream)  # costs nothing if it is the same stream
            opened[1]({X: x, W: w, Y: y}, workspace, self.handle)
        except Exception as error:  # the frontend has its own exception types
            kind = DeviceShort if short_of_memory(str(error)) else DeviceError
            raise kind(f"cuDNN {self.version}, plan {plan}: {error}") from error

    def close(self) -> None:
        """Destroy the library's handle."""
        self._open.clear()
        self._last = None
        if self.handle is not None:
            cudnn.destroy_handle(self.handle)
            self.handle = None

    def _exact(self, convolution: Convolution) -> list[Any]:
        """Return the notes of plans that round the factors of fp32 products, if these must be exact; else []."""
        if convolution.dtype == "float32" and not convolution.tf32:
            return [cudnn.numerical_note.TENSOR_CORE, cudnn.numerical_note.DOWN_CONVERT_INPUTS]
        return []

    def _without(self, convolution: Convolution, note: Any) -> set[str]:
        """Return the names of the plans that do not have this note."""
        return {name for name, _ in self._built(self._graph(convolution, [*self._exact(convolution), note]))}

    def _built_as(self, convolution: Convolution, plan: str) -> Execute:
        """Return a function that runs the plan of this name. Raises DeviceError if it is unknown or cannot be built."""
        graph, failed = self._unfiltered(convolution), ""
        for index in range(graph.get_execution_plan_count()):
            if graph.get_plan_name_at_index(index) == plan:
                try:
                    graph.build_plan_at_index(index)  # and selects it
                    return runner(graph, index)
                except Exception as error:  # the list may have the same name twice, once filtered out
                    failed = f": {error}"
        known = "could not be built" if failed else "is unknown to it: delete the file of timed plans"
        kind = DeviceShort if short_of_memory(failed) else DeviceError
        raise kind(f"cuDNN {self.version}, plan {plan} for {convolution} {known}{failed}")

    def _unfiltered(self, convolution: Convolution) -> Any:
        """Return a graph with all plans: the last one again if it is of the same convolution.
        A frontend of another version runs the plan that was built last, so each plan gets its own graph there."""
        if self._last is None or self._last[0] != convolution or not known_frontend():
            self._last = convolution, self._graph(convolution, [])
        return self._last[1]

    def _built(self, graph: Any) -> list[tuple[str, int]]:
        """Return names and workspaces of the plans that can be built."""
        found = []
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
            except cudnn.cudnnGraphNotSupportedError:
                continue  # filtered out by its notes, or not for this shape
            found.append((graph.get_plan_name_at_index(index), graph.get_workspace_size_plan_at_index(index)))
        return found

    def _graph(self, c: Convolution, without: list[Any]) -> Any:
        """Return a graph with its list of plans, except the plans that have one of the notes ``without``."""
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
        except RuntimeError as error:
            raise DeviceError(f"cuDNN {self.version}, listing plans of {c}: {error}") from error
        graph.deselect_behavior_notes([cudnn.behavior_note.RUNTIME_COMPILATION])
        if without:
            graph.deselect_numeric_notes(without)
        return graph
