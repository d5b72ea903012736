"""Attention as graphs of cuDNN's frontend: finding the plan of a graph, and running a plan by name.

A graph has a single node. Queries, keys, values and results have the layout of minidl's layers, [N, L, heads, D];
strides present them to cuDNN as [N, heads, L, D].

A plan is compiled when it is built, which takes a second. So the graph that found a plan also runs it, and a plan whose
name is known is built alone. cuDNN refuses an unsupported graph before it lists a plan. A later failure is an error:
attention must not be composed silently, because its bits, bytes and time would differ.

Knows cuDNN; no memory and no stream of its own.
"""

import json
from collections.abc import Sequence
from typing import Any

from minidl.device.cuda.cudnn_graphs import TYPES, Execute, cudnn, runner
from minidl.device.cuda.seam import ATTENTION_OPERANDS, Attention, PlanInfo
from minidl.errors import DeviceError
from minidl.meta import row_major

SEED, OFFSET = 100, 101  # numbers of these tensors; the others are numbered by their names' places in NAMES
FAILURES = (cudnn.cudnnGraphNotSupportedError, RuntimeError)  # neither is a subclass of the other
COMPILATION = "COMPILATION_FAILED"  # cuDNN's message contains this if NVRTC or a later stage has failed
REFUSALS = ("NOT_SUPPORTED", "Deselecting")  # ... if a plan does not fit the shape, or was filtered out by a note
NAMES = ("q", "k", "v", "mask", "y", "lse", "dy", "dq", "dk", "dv")


class AttentionGraphs:
    """Finds and runs cuDNN plans of attention on the current GPU, by a cuDNN handle.
    With the properties of another GPU (JSON) it only finds plans, for that one."""

    def __init__(self, handle: Any, properties: str | None = None) -> None:
        self._handle = handle
        self._where: dict[str, Any] = {"handle": handle}
        if properties is not None:  # the frontend's attention node also needs ``sm_version``
            self._where = {"device_property": cudnn.create_device_properties(properties),
                           "sm_version": json.loads(properties)["deviceVer"] // 10}
        self._built: dict[tuple[Attention, str], Execute] = {}
        self._open: dict[tuple[int, str], tuple[Attention, Execute]] = {}  # by id(), as in ``CudnnGraphs``

    def plan(self, attention: Attention) -> PlanInfo | None:
        """Return the first plan, in the order of the heuristics, that adds in a fixed order; None if there is none.

        Raises DeviceError if cuDNN fails.
        """
        try:
            graph = self._graph(attention, cudnn.numerical_note.NONDETERMINISTIC)
        except cudnn.cudnnGraphNotSupportedError as error:
            if COMPILATION in str(error):
                raise self._failed(attention, error) from error
            return None
        except RuntimeError as error:
            raise self._failed(attention, error) from error
        failure: Exception | None = None
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
            except FAILURES as error:
                if COMPILATION in str(error):
                    raise self._failed(attention, error) from error
                if not any(words in str(error) for words in REFUSALS):
                    failure = failure or error
                continue
            name = graph.get_plan_name_at_index(index)
            self._built[attention, name] = runner(graph, index)
            return PlanInfo(name, graph.get_workspace_size_plan_at_index(index), True)
        if failure is not None:
            raise self._failed(attention, failure) from failure
        return None

    def run(self, attention: Attention, plan: str, operands: Sequence[int], seed: int, workspace: int,
            stream: int) -> None:
        """Run attention on operands at these addresses (``seam.ATTENTION_OPERANDS``); seed, workspace: addresses, too.
        Raises DeviceError if cuDNN has no plan of this name, or if it fails."""
        opened = self._open.get((id(attention), plan))
        if opened is None:
            opened = self._open[id(attention), plan] = attention, self._execute_of(attention, plan)
        names = ATTENTION_OPERANDS[attention.gradient]
        addresses = {number(name): address for name, address in zip(names, operands, strict=False)}
        if attention.dropout:
            addresses |= {SEED: seed, OFFSET: seed + 8}
        try:
            cudnn.set_stream(handle=self._handle, stream=stream)  # costs nothing if it is the same stream
            opened[1](addresses, workspace, self._handle)
        except Exception as error:  # the frontend has its own exception types
            raise DeviceError(f"cuDNN, plan {plan}: {error}") from error

    def close(self) -> None:
        """Drop the graphs. Their handle must still exist."""
        self._open.clear()
        self._built.clear()

    def _execute_of(self, attention: Attention, plan: str) -> Execute:
        """Return the function that runs the plan of this name, which is built at the first request.
        Raises DeviceError if cuDNN fails to build the plan, or has none of this name."""
        execute = self._built.get((attention, plan))
        if execute is not None:
            return execute
        failed = ""
        try:
            graph = self._graph(attention)
        except FAILURES as error:
            raise self._failed(attention, error) from error
        for index in range(graph.get_execution_plan_count()):
            if graph.get_plan_name_at_index(index) == plan:
                try:
                    graph.build_plan_at_index(index)  # and selects it
                except FAILURES as error:  # the list may have the same name twice, once filtered out
                    failed = str(error)
                    continue
                execute = self._built[attention, plan] = runner(graph, index)
                return execute
        if failed:
            raise self._failed(attention, failed)
        raise DeviceError(f"cuDNN has no plan {plan} for {attention}: delete the file of attention's plans")

    def _failed(self, attention: Attention, error: object) -> DeviceError:
        """Return the error for a failed build, with cuDNN's message and a way around it."""
        return DeviceError(f"cuDNN {cudnn.backend_version()} failed to build a plan for {attention}: {error}; "
                           'attention="composed" (train.py --attention composed) avoids it')

    def _graph(self, a: Attention, *without: Any) -> Any:
        """Return a graph with its list of plans, except the plans that have one of the notes ``without``."""
        kind, real = TYPES[a.dtype], cudnn.data_type.FLOAT
        graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=real, compute_data_type=real, **self._where)

        def tensor(name: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any = kind) -> Any:
            return graph.tensor(dim=list(shape), stride=list(strides), data_type=dtype, uid=number(name))

        def finish(out: Any, name: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any = kind) -> None:
            out.set_output(True).set_data_type(dtype).set_dim(list(shape)).set_stride(list(strides))
            out.set_uid(number(name))
        queries, keys = _by_heads(a, a.length), _by_heads(a, a.keys)
        sums = (a.n, a.heads, a.length, 1), (a.heads * a.length, a.length, 1, 1)
        options: dict[str, Any] = {"attn_scale": a.depth**-0.5, "use_causal_mask": a.causal}
        if a.mask is not None:
            options["bias"] = tensor("mask", a.mask, row_major(a.mask), TYPES[a.mask_dtype or a.dtype])
        if a.dropout:
            one = {"dim": [1] * 4, "stride": [1] * 4, "data_type": cudnn.data_type.INT64}
            options["dropout"] = a.dropout, graph.tensor(**one, uid=SEED), graph.tensor(**one, uid=OFFSET)
        inputs = {"q": tensor("q", *queries), "k": tensor("k", *keys), "v": tensor("v", *keys), **options}
        if a.gradient:
            results = graph.sdpa_backward(**inputs, o=tensor("y", *queries), dO=tensor("dy", *queries),
                                          stats=tensor("lse", *sums, real), use_deterministic_algorithm=True)
            for out, name, lies in zip(results, ("dq", "dk", "dv"), (queries, keys, keys), strict=True):
                finish(out, name, *lies)
        else:
            y, lse = graph.sdpa(**inputs, generate_stats=True)
            finish(y, "y", *queries)
            finish(lse, "lse", *sums, real)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        if without:
            graph.deselect_numeric_notes(list(without))
        return graph


def number(name: str) -> int:
    """Return the uid, in its graph, of the tensor of this name (one of NAMES)."""
    return 1 + NAMES.index(name)


def _by_heads(a: Attention, length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides of [N, heads, length, D] in memory that is [N, length, heads, D]."""
    width = a.heads * a.depth
    return (a.n, a.heads, length, a.depth), (length * width, a.depth, width, 1)

