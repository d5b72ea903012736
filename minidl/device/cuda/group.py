"""The GPUs of all ranks as one group, which makes exchanges between them on the compute stream.

Before an exchange is issued, the ranks compare by MPI, from the host, which exchange each is about to make. So either
every rank issues it, or none does. A rank that cannot issue what all have agreed on, because NCCL or the GPU has
failed, ends all ranks: no GPU waits for messages that no one sends. The host waits for the other ranks in that
comparison alone, and in NCCL before the first messages between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minidl.device.cuda import exchange
from minidl.device.cuda.programs import Program, Programs
from minidl.device.cuda.seam import Communicator, Handle, Message, Vendor
from minidl.device.turns import text_of
from minidl.errors import DeviceError, UserError
from minidl.meta import Meta
from minidl.ranks import Ranks

OPERATIONS = frozenset(exchange.MAKERS)
FAILED = 2  # the exit code of a program that an error of a device has ended (``cli.command``)
Places = tuple[int, ...]  # the addresses of the operands' blocks, and of the workspace


class Group:
    """This GPU's exchanges with those of the other ranks, on the stream of ``programs``."""

    def __init__(self, vendor: Vendor, stream: Handle, programs: Programs) -> None:
        self._vendor, self._stream, self._programs = vendor, stream, programs
        self._communicator: Communicator | None = None

    def join(self, ranks: Ranks) -> None:
        """Connect this GPU with those of the other ranks; all of them call this.
        Raises UserError, on all ranks, if NCCL is missing on one of them or two have the same GPU."""
        meeting, missing = None, ""
        try:
            meeting = self._vendor.network.meeting(first=not ranks.rank)
        except (UserError, DeviceError) as error:
            missing = str(error)
        found = ranks.agree((meeting, self._vendor.properties.uuid, missing))
        owners: dict[str, int] = {}
        for rank, (_, uuid, problem) in enumerate(found):
            if problem:
                raise UserError(f"rank {rank}: {problem}")
            if owners.setdefault(uuid, rank) != rank:
                raise UserError(f"ranks {owners[uuid]} and {rank} have one GPU, {uuid}, and each needs its own: start "
                                "no more ranks than GPUs, with device cuda, or another CUDA_VISIBLE_DEVICES for each")
        self.close()
        self._communicator = self._vendor.network.communicator(found[0][0], ranks.count, ranks.rank)
        ranks.when_failed(self.abort)

    def program(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta],
                attrs: dict[str, Any]) -> tuple[Program, int]:
        """Return the program of an exchange, and its workspace in bytes."""
        fixed = {key: value for key, value in attrs.items() if key != "turn"}
        made = exchange.MAKERS[op_name](inputs, outputs, **fixed)
        issues = [self._issue(step, made.itemsize) for step in made.steps]
        operands = (*outputs, *inputs)

        def program(blocks: Sequence[int], attrs: dict[str, Any], workspace: int) -> None:
            ranks: Ranks = attrs["ranks"]
            told = {key: value for key, value in attrs.items() if key != "ranks"}
            ranks.require_alike(text_of(op_name, operands, layout=made.compared, **told))
            places = (*blocks, workspace)
            try:
                for issue in issues:
                    issue(places)
            except BaseException as error:  # the GPUs of the others would wait for ever for what this one has not sent
                ranks.fail(FAILED, f"{op_name}: {str(error) or type(error).__name__}")
                raise
        return program, made.workspace

    def _issue(self, step: exchange.Step, itemsize: int) -> Callable[[Places], None]:
        """Return the function that issues a step, given the operands' addresses."""
        if isinstance(step, exchange.Copied):
            kernel, operands = self._programs.kernel(step.kernel, step.metas, {}), step.operands
            return lambda places: kernel([places[i] for i in operands], {}, 0)
        if isinstance(step, exchange.Moved):
            copy, stream, to, origin, nbytes = (self._vendor.copy, self._stream, step.to, step.origin,
                                                step.to.size * itemsize)
            return lambda places: copy(places[to.operand] + to.start * itemsize,
                                       places[origin.operand] + origin.start * itemsize, nbytes, stream)
        messages = [(peer, x.operand, x.start * itemsize, x.size * itemsize, sends) for peer, x, sends in step.messages]

        def send(places: Places) -> None:
            if self._communicator is None:
                raise DeviceError("NCCL: another rank has failed, and ended the exchanges of all")
            self._communicator.exchange([Message(peer, places[operand] + start, nbytes, sends)
                                         for peer, operand, start, nbytes, sends in messages], self._stream)
        return send

    def abort(self) -> None:
        """End the group without a wait, from any thread; work that waits for other ranks ends."""
        if self._communicator is not None:
            communicator, self._communicator = self._communicator, None
            communicator.abort()

    def close(self) -> None:
        """End the group, whose work must have ended."""
        if self._communicator is not None:
            communicator, self._communicator = self._communicator, None
            communicator.close()
