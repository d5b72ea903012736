"""A stand-in for the ``cudnn`` module without a GPU: graphs list a few plans and record when one is run.

Plans have notes like cuDNN's: ``runtime`` is compiled when it is built, ``cores`` runs on tensor cores, ``unordered``
adds in no fixed order. A plan that is filtered out by its notes cannot be built.
"""

import os
from types import SimpleNamespace

__version__ = "0"
data_type = SimpleNamespace(FLOAT="float", HALF="half", BFLOAT16="bfloat16", DOUBLE="double", INT64="int64")
heur_mode = SimpleNamespace(A="a", FALLBACK="fallback")
behavior_note = SimpleNamespace(RUNTIME_COMPILATION="runtime compilation")
numerical_note = SimpleNamespace(NONDETERMINISTIC="no order", TENSOR_CORE="tensor cores", DOWN_CONVERT_INPUTS="rounds")
PLANS = (("runtime", 100, {"runtime compilation"}), ("cores", 200, {"tensor cores"}), ("unordered", 0, {"no order"}),
         ("plain", 300, set()), ("broken", 0, set()))
built = []  # names, in order
fails = {}  # by plan, the message of its failed build
streams = {}  # by handle


class cudnnGraphNotSupportedError(Exception):  # noqa: N801 - as it is called
    pass


def backend_version():
    return 92700


def create_device_properties(text):
    return text


def create_handle():
    handle = object()
    streams[handle] = 0
    _note("cudnnCreate")
    return handle


def destroy_handle(handle):
    del streams[handle]
    _note("cudnnDestroy")


def set_stream(*, handle, stream):
    streams[handle] = stream


def _note(line):
    if "STUB_LOG" in os.environ:
        with open(os.environ["STUB_LOG"], "a") as file:
            file.write(line + "\n")


class Tensor:
    def __getattr__(self, name):  # set_output and its like
        return lambda value: self


class pygraph:  # noqa: N801
    def __init__(self, **options):
        self._without, self._chosen = set(), None

    def tensor(self, **options):
        return Tensor()

    def conv_fprop(self, **options):
        return Tensor()

    conv_dgrad = conv_wgrad = conv_fprop

    def sdpa(self, **options):
        return Tensor(), Tensor()

    def sdpa_backward(self, **options):
        return Tensor(), Tensor(), Tensor()

    def validate(self):
        pass

    def build_operation_graph(self):
        pass

    def create_execution_plans(self, modes):
        assert modes == ["a", "fallback"]

    def deselect_behavior_notes(self, notes):
        self._without |= set(notes)

    deselect_numeric_notes = deselect_behavior_notes

    def get_execution_plan_count(self):
        return len(PLANS)

    def get_plan_name_at_index(self, index):
        return PLANS[index][0]

    def get_workspace_size_plan_at_index(self, index):
        return PLANS[index][1]

    def build_plan_at_index(self, index):
        name, _, notes = PLANS[index]
        if notes & self._without:
            raise cudnnGraphNotSupportedError("Deselecting execution plan")
        if name in fails:
            raise cudnnGraphNotSupportedError(fails[name])
        built.append(name)
        self._chosen = name

    def execute(self, addresses, workspace, handle):
        if self._chosen == "broken":
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        x, w, y = (addresses[uid] for uid in (1, 2, 3))  # of attention its queries, keys and values
        _note(f"cudnnExecute stream={streams[handle]} x={x} w={w} y={y} workspace={workspace}")
