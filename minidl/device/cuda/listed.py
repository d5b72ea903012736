"""cuDNN's plans for the convolutions of well-known networks on a named GPU, stored as files of the package.

cuDNN can list the plans of a GPU that is not present, with their exact workspaces; ``bench/cudnn_plans.py`` makes these
files that way. A file has only the plans that ``convolution.chosen`` may return. They are stored by shape without the
batch: an entry holds from its batch up to the next entry's,

  workspace(batch) = bytes + bytes_per_image * (batch - batch of the entry)

This is exact at the batches that were listed. Between them, on an H100, 9 in 10 of ResNet-50's convolutions have the
workspace that cuDNN gives them, and none is more than 15 MB off. Knows convolutions and plans; no device and no
library.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from minidl.device.cuda.seam import Convolution
from minidl.device.cuda.timed_plans import TimedPlan, key
from minidl.errors import UserError

FOLDER = Path(__file__).with_name("listed")


@dataclass(frozen=True, slots=True)
class ListedPlan:
    """One plan at its entry's batch; ``rank`` is its place in the order of cuDNN's heuristics."""

    name: str
    rank: int
    workspace: int
    bytes_per_image: int
    deterministic: bool

    def at(self, images: int) -> TimedPlan:
        """Return the plan for a batch of ``images`` more than the batch of its entry."""
        return TimedPlan(self.name, max(0, self.workspace + images * self.bytes_per_image), self.deterministic,
                         rank=self.rank)


Entry = tuple[int, tuple[ListedPlan, ...]]  # (the smallest batch for these plans, the plans)


@dataclass(frozen=True)
class ListedPlans:
    """The plans of one GPU.

    gpu, cudnn      the device and the version (as the library writes it: 92700) for which they were listed
    channels_last   True if all tensors are channels-last
    entries         by shape (``shape_of``), sorted by batch
    """

    gpu: str
    cudnn: int
    channels_last: bool
    entries: Mapping[str, Sequence[Entry]] = field(default_factory=dict, hash=False)

    def of(self, convolution: Convolution) -> tuple[TimedPlan, ...]:
        """Return the plans of a convolution in the order of the heuristics; () for a shape that was not listed."""
        entries = self.entries.get(shape_of(convolution))
        if entries is None:
            return ()
        batch = convolution.x[0]
        start, plans = entries[max(0, bisect_right(entries, batch, key=lambda entry: entry[0]) - 1)]
        return tuple([plan.at(batch - start) for plan in plans])

    def to_json(self) -> str:
        """Return the plans as JSON: one line per shape, with plans as indices into a list of names."""
        names = sorted({plan.name for entries in self.entries.values() for _, plans in entries for plan in plans})
        number = {name: index for index, name in enumerate(names)}
        lines = []
        for shape, entries in sorted(self.entries.items()):
            rows = [[batch, [[number[p.name], p.rank, p.workspace, p.bytes_per_image, int(p.deterministic)]
                             for p in plans]] for batch, plans in entries]
            lines.append(f"{json.dumps(shape)}: {json.dumps(rows, separators=(',', ':'))}")
        head = {"gpu": self.gpu, "cudnn": self.cudnn, "channels_last": self.channels_last, "names": names}
        return json.dumps(head, indent=0)[:-2] + ',\n"plans": {\n' + ",\n".join(lines) + "\n}}\n"

    @staticmethod
    def from_json(text: str) -> "ListedPlans":
        """Return the plans that ``to_json`` wrote."""
        data: dict[str, Any] = json.loads(text)
        names = data["names"]
        entries = {shape: [(batch, tuple([ListedPlan(names[p[0]], p[1], p[2], p[3], bool(p[4])) for p in plans]))
                           for batch, plans in rows] for shape, rows in data["plans"].items()}
        return ListedPlans(data["gpu"], data["cudnn"], data["channels_last"], entries)


def shape_of(convolution: Convolution) -> str:
    """Return a convolution without its batch, as text."""
    return key(replace(convolution, x=convolution.x[1:], y=convolution.y[1:]))


@cache
def load(name: str) -> ListedPlans:
    """Return the package's plans for the GPU of a profile. Raises UserError if there are none."""
    path = FOLDER / f"{name}.json"
    known = sorted(file.stem for file in FOLDER.glob("*.json"))
    if name not in known:
        raise UserError(f"no plans of cuDNN were listed for {name!r}; known: {', '.join(known)}")
    return ListedPlans.from_json(path.read_text(encoding="utf-8"))
