"""The result of a run, as ``--json`` writes it. KEYS documents every key; knows no devices."""

import json
import platform
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from math import isfinite
from typing import Any

from minidl import __version__
from minidl.outside.writing import write_whole

KEYS: dict[str, str] = {
    "model": "name",
    "batch": "images a step",
    "device": "name",
    "policy": "name",
    "precision": "fp32, tf32 or bf16: what layers computed in",
    "budget_bytes": "device memory that the run was allowed (bytes)",
    "peak_bytes": "the most of it that was in use at once (bytes)",
    "unmanaged_peak_bytes": "what the same step needs without memory management (bytes)",
    "largest_op": "{name, bytes}: the operation with the largest working set, the least that any policy needs",
    "step_seconds": "one step (seconds)",
    "items_per_second": "images a second",
    "swapped_out_bytes": "copied to the host in a step (bytes)",
    "swapped_in_bytes": "copied back in a step (bytes)",
    "recomputed_bytes": "computed again in a step (bytes)",
    "recompute_seconds": "device time of that in a step (seconds)",
    "stall_seconds": "how long the device waited for copies in a step (seconds)",
    "host_peak_bytes": "the most host memory that swapped tensors took at once (bytes)",
    "loss": "of the last step",
    "accuracy": "share of the test images that were recognised, after training",
    "accuracy_top5": "share of them whose class was among the five most likely",
    "dice": "of test images with masks: mean over the classes of 2 |A and B| / (|A| + |B|)",
    "masked_lm_loss": "of held-out text: mean cross-entropy of the masked words (nats)",
    "masked_lm_accuracy": "share of these words that were predicted",
    "next_sentence_accuracy": "share of its pairs of segments whose order was recognised",
    "data_seconds": "how long a step waited for its batch (seconds)",
    "examples_per_second": "how many images, or pairs of sentences, a second the threads can make of the data",
    "skipped_files": "how many broken files were left out",
    "planning_seconds": "all that planning took of the run's own time (seconds)",
    "planning_share": "of the run that this was",
    "moved_bytes": "slid to other addresses in a step (bytes)",
    "search_seconds": "what finding the plan cost: how much longer the first half of the steps took (seconds)",
    "unmanaged_step_seconds": "one step with unlimited memory, where that is modelled (seconds)",
    "seed": "that all random numbers follow from",
    "version": "of minidl",
    "versions": "{python, numpy, numba}: of what computed it",
}


@dataclass(frozen=True, slots=True)
class LargestOp:
    """The operation with the largest working set."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Versions:
    """Of what computes: the interpreter, and the packages that results depend on."""

    python: str = field(default_factory=platform.python_version)
    numpy: str = field(default_factory=partial(version, "numpy"))
    numba: str = field(default_factory=partial(version, "numba"))


@dataclass(frozen=True, slots=True)
class Result:
    """One run; the fields are KEYS. Numbers "in a step" are medians over the later half. None: not there."""

    model: str
    batch: int
    device: str
    policy: str
    precision: str
    budget_bytes: int
    peak_bytes: int
    unmanaged_peak_bytes: int
    largest_op: LargestOp
    step_seconds: float
    items_per_second: float
    swapped_out_bytes: int
    swapped_in_bytes: int
    recomputed_bytes: int
    recompute_seconds: float | None
    stall_seconds: float | None
    host_peak_bytes: int
    loss: float | None
    accuracy: float | None
    accuracy_top5: float | None = None
    dice: float | None = None
    masked_lm_loss: float | None = None
    masked_lm_accuracy: float | None = None
    next_sentence_accuracy: float | None = None
    data_seconds: float = 0.0
    examples_per_second: float | None = None
    skipped_files: int = 0
    planning_seconds: float | None = None
    planning_share: float | None = None
    moved_bytes: int = 0
    search_seconds: float | None = None
    unmanaged_step_seconds: float | None = None
    seed: int = 0
    version: str = __version__
    versions: Versions = field(default_factory=Versions)

    def to_json(self) -> str:
        """As one JSON object; a number that is not finite becomes null."""
        return json.dumps(_finite(asdict(self)), indent=2) + "\n"

    def write(self, path: str, *, force: bool = False) -> None:
        """``to_json`` to a file, as ``minidl.outside.writing`` has it. Raises UserError."""
        write_whole(path, self.to_json().encode(), is_own, force=force)


def is_own(head: bytes) -> bool:
    """True if a file that begins like this was made by ``Result.to_json``."""
    return head.startswith(b'{\n  "model": ') and b'\n  "unmanaged_peak_bytes": ' in head


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value
