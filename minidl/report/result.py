"""The numbers of a run, as ``--json`` writes them. KEYS documents every key."""

import json
import platform
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from math import isfinite
from typing import Any

from minidl import __version__
from minidl.outside.shown import Shown
from minidl.outside.units import format_bytes
from minidl.outside.writing import write_whole

KEYS: dict[str, str] = {
    "model": "name",
    "batch": "images a step",
    "device": "name",
    "policy": "name",
    "precision": "fp32, tf32 or bf16: what layers computed in",
    "budget_bytes": "device memory that the run was allowed to use (bytes)",
    "peak_bytes": "the most device memory in use at once (bytes)",
    "unmanaged_peak_bytes": "what the same step needs without memory management (bytes)",
    "largest_op": "{name, bytes}: the operation with the largest working set; no policy can run in less",
    "step_seconds": "one step (seconds)",
    "items_per_second": "images (or pairs of sentences) per second",
    "swapped_out_bytes": "copied to the host in a step (bytes)",
    "swapped_in_bytes": "copied back in a step (bytes)",
    "recomputed_bytes": "recomputed in a step (bytes)",
    "recompute_seconds": "device time of recomputation in a step (seconds)",
    "stall_seconds": "how long the device waited for copies, and simulated ranks for exchanges, in a step (seconds)",
    "host_peak_bytes": "the most host memory that swapped tensors took at one time (bytes)",
    "loss": "of the last step",
    "accuracy": "share of the test images that were recognised, after training",
    "accuracy_top5": "share of the test images whose class was among the five most likely",
    "dice": "of test images with masks: mean over the classes of 2 |A and B| / (|A| + |B|)",
    "masked_lm_loss": "of held-out text: mean cross-entropy of the masked words (nats)",
    "masked_lm_accuracy": "of held-out text: share of the masked words that were predicted",
    "next_token_loss": "of held-out text: mean cross-entropy of the next tokens (nats)",
    "next_sentence_accuracy": "of held-out text: share of pairs for which the next sentence was recognised",
    "data_seconds": "how long a step waited for its batch (seconds)",
    "examples_per_second": "how many images (or pairs of sentences) per second the data threads can prepare",
    "skipped_files": "how many broken files were left out",
    "planning_seconds": "time of the run spent on planning (seconds)",
    "planning_share": "share of the run spent on planning",
    "moved_bytes": "slid to other addresses in a step (bytes)",
    "slid_seconds": "device time of these copies in a step, estimated (seconds)",
    "slower_seconds": "lost in a step to slower algorithms, whose workspace had room (seconds)",
    "search_seconds": "cost of finding the plan: how much longer the first half of the steps took (seconds)",
    "unmanaged_step_seconds": "one step with unlimited memory, if that is modelled (seconds)",
    "ranks": "[{rank, budget_bytes, peak_bytes, ...}]: the memory of each rank; empty without --ranks",
    "seed": "the seed of all random numbers",
    "version": "version of minidl",
    "versions": "{python, numpy, numba}: versions of the software that computed it",
}


@dataclass(frozen=True, slots=True)
class LargestOp:
    """The operation with the largest working set: its name and bytes."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The memory of one rank of a run: its budget and peaks in bytes, and what moved in a step; None: unknown."""

    rank: int
    budget_bytes: int
    peak_bytes: int
    host_peak_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    recomputed_bytes: int
    stall_seconds: float | None


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of the interpreter and of the packages that results depend on."""

    python: str = field(default_factory=platform.python_version)
    numpy: str = field(default_factory=partial(version, "numpy"))
    numba: str = field(default_factory=partial(version, "numba"))


@dataclass(frozen=True, slots=True, repr=False)
class Result(Shown):
    """The numbers of one run; KEYS explains the fields.
    Numbers per step are medians over the run's second half; None: unknown."""

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
    next_token_loss: float | None = None
    next_sentence_accuracy: float | None = None
    data_seconds: float = 0.0
    examples_per_second: float | None = None
    skipped_files: int = 0
    planning_seconds: float | None = None
    planning_share: float | None = None
    moved_bytes: int = 0
    slid_seconds: float | None = None
    slower_seconds: float | None = None
    search_seconds: float | None = None
    unmanaged_step_seconds: float | None = None
    ranks: tuple[RankMemory, ...] = ()
    seed: int = 0
    version: str = __version__
    versions: Versions = field(default_factory=Versions)

    def facts(self) -> dict[str, str]:
        """Return the numbers of the summary by name, as text, for ``repr``."""
        found = {"model": self.model, "batch": str(self.batch), "device": self.device, "policy": self.policy,
                 "peak": f"{format_bytes(self.peak_bytes)} of {format_bytes(self.budget_bytes)}",
                 "unmanaged": format_bytes(self.unmanaged_peak_bytes), "a second": f"{self.items_per_second:.4g}"}
        return found if self.loss is None else {**found, "loss": f"{self.loss:.6g}"}

    def to_json(self) -> str:
        """Return the result as one JSON object; a number that is not finite becomes null."""
        return json.dumps(_finite(asdict(self)), indent=2) + "\n"

    def write(self, path: str, *, force: bool = False) -> None:
        """Write the result as JSON to a file. Raises UserError if that fails, or over other files unless ``force``."""
        write_whole(path, self.to_json().encode(), is_own, force=force)


def is_own(head: bytes) -> bool:
    """Return True if a file with this beginning was written by ``Result.to_json``."""
    return head.startswith(b'{\n  "model": ') and b'\n  "unmanaged_peak_bytes": ' in head


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value
