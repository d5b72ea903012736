"""Attention as graphs of cuDNN's frontend: finding the plan of one, and running one by name.

A graph has a single node. Queries, keys and values lie as layers make them, the heads of a position side by side, and
so do the results: [N, heads, L, D] is a matter of strides.

A plan is compiled when it is built, which takes a second: the graph with which a plan was found runs it, too, and a
plan whose name is known is built alone. cuDNN refuses a graph that it does not support before it lists a plan. What
fails afterwards is an error: attention must not be composed in silence, for its bits, bytes and time would be others.

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
FAILURES = (cudnn.cudnnGraphNotSupportedError, RuntimeError)  # of which neither is the other
COMPILATION = "COMPILATION_FAILED"  # in cuDNN's words where NVRTC, or what follows it, has failed
REFUSALS = ("NOT_SUPPORTED", "Deselecting")  # in those for a plan that does not fit the shape, or has a barred note
NAMES = ("q", "k", "v", "mask", "y", "lse", "dy", "dq", "dk", "dv")


class AttentionGraphs:
    """Graphs of attention on the current GPU, by a handle of cuDNN; or for the GPU of these properties (JSON)."""

    def __init__(self, handle: Any, properties: str | None = None) -> None:
        self._handle = handle
        self._where: dict[str, Any] = {"handle": handle}
        if properties is not None:  # of which this node of the frontend does not see all
            self._where = {"device_property": cudnn.create_device_properties(properties),
                           "sm_version": json.loads(properties)["deviceVer"] // 10}
        self._built: dict[tuple[Attention, str], Execute] = {}
        self._open: dict[tuple[int, str], tuple[Attention, Execute]] = {}  # by identity, as convolutions

    def plan(self, attention: Attention) -> PlanInfo | None:
        """The first plan that adds in a fixed order, in the order of the heuristics; None where cuDNN does not support
        it. Raises DeviceError where cuDNN fails."""
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
        """Run attention on operands at these addresses, in the order of ``seam.ATTENTION_OPERANDS``. Raises
        DeviceError."""
        opened = self._open.get((id(attention), plan))
        if opened is None:
            opened = self._open[id(attention), plan] = attention, self._execute_of(attention, plan)
        names = ATTENTION_OPERANDS[attention.gradient]
        addresses = {number(name): address for name, address in zip(names, operands, strict=False)}
        if attention.dropout:
            addresses |= {SEED: seed, OFFSET: seed + 8}
        try:
            cudnn.set_stream(handle=self._handle, stream=stream)  # costs nothing where it is the same
            opened[1](addresses, workspace, self._handle)
        except Exception as error:  # of types of the frontend's own
            raise DeviceError(f"cuDNN, plan {plan}: {error}") from error

    def close(self) -> None:
        """Forget the graphs, before their handle is given back."""
        self._open.clear()
        self._built.clear()

    def _execute_of(self, attention: Attention, plan: str) -> Execute:
        """What runs the plan of this name, which is built unless it was. Raises DeviceError."""
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
                except FAILURES as error:  # the same name may come twice, and be barred once
                    failed = str(error)
                    continue
                execute = self._built[attention, plan] = runner(graph, index)
                return execute
        if failed:
            raise self._failed(attention, failed)
        raise DeviceError(f"cuDNN has no plan {plan} for {attention}: remove the file of attention's plans")

    def _failed(self, attention: Attention, error: object) -> DeviceError:
        """The error of a failure, with cuDNN's words and a way around it."""
        return DeviceError(f"cuDNN {cudnn.backend_version()} failed to build a plan for {attention}: {error}; "
                           'attention="composed" (train.py --attention composed) does without')

    def _graph(self, a: Attention, *without: Any) -> Any:
        """A graph with its list of plans, those left out that have one of these notes."""
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
    """The number of a tensor in its graph."""
    return 1 + NAMES.index(name)


def _by_heads(a: Attention, length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides of [N, heads, length, D] in memory that is [N, length, heads, D]."""
    width = a.heads * a.depth
    return (a.n, a.heads, length, a.depth), (length * width, a.depth, width, 1)

