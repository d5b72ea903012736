"""Records how evicted tensors came back in this iteration, for a policy's feedback."""

from collections.abc import Sequence

from minidl.device.clock import COMPUTE
from minidl.memory.guided.sequence import Returns
from minidl.memory.replay import Replay
from minidl.memory.state import MemoryState
from minidl.memory.storage import Storage
from minidl.plan.plan import AccessKey


class Returning:
    """Records each return of an evicted tensor, by the access after which the tensor had left the device."""

    def __init__(self, state: MemoryState, replaying: Replay) -> None:
        self.state = state
        self.replaying = replaying
        self._arrivals: list[tuple[AccessKey, int, int]] = []  # positions on the copy-in and the compute stream
        self._paged_in: dict[AccessKey, float] = {}
        self._recomputed: dict[AccessKey, Sequence[float]] = {}

    def arrived(self, storage: Storage) -> None:
        """Record that a call needs a prefetched tensor now. How late its copy is, is known only after the iteration."""
        key = storage.tensor_id, storage.access_count
        self._arrivals.append((key, storage.copied_in, self.state.device.positions[COMPUTE]))

    def returned(self, storage: Storage, replay: Sequence[float] | None) -> None:
        """Record that a tensor came back on demand. replay: the seconds of the replayed calls, None for a swap-in.
        The list is filled as the calls finish."""
        key = storage.tensor_id, storage.access_count
        if replay is None:
            self._paged_in[key] = self.state.device.in_seconds(storage.nbytes)
        else:
            self._recomputed[key] = replay

    def summary(self) -> Returns:
        """Return the returns of this iteration.
        In seconds: waits for prefetches, swap-ins on demand, replays; and the bytes swapped in on demand."""
        lateness = self.state.device.lateness
        late = {key: lateness(copied, computed) for key, copied, computed in self._arrivals}
        recomputed = {key: sum(durations) for key, durations in self._recomputed.items()}
        return Returns(late, dict(self._paged_in), recomputed, self.replaying.paged_in_bytes)

    def clear(self) -> None:
        """Forget all returns, as the next iteration begins."""
        self._arrivals.clear()
        self._paged_in.clear()
        self._recomputed.clear()
