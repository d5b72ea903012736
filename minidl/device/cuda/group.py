"""The GPUs of all ranks as one group, which makes exchanges between them on a stream of their own.

  compute   | gradients |---- more of the backward pass ----| wait | optimizer
  exchange              | messages, additions, messages |

An exchange waits for the work that was issued to the compute stream before it, so for all that its inputs and the bytes
of its outputs and workspace wait for. Work that touches any of these bytes later waits for the exchange
(``device.in_use``). The device asks before each piece of work, so this holds for whatever the bytes are used for.

Before an exchange is issued, the ranks compare by MPI, from the host, which exchange each is about to make. So either
every rank issues it, or none does. A rank that cannot issue what all have agreed on, because NCCL or the GPU has
failed, ends all ranks: no GPU waits for messages that no one sends. The host waits for the other ranks in that
comparison alone, and in NCCL before the first messages between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minidl.device.beside import BESIDE
from minidl.device.clock import COMPUTE
from minidl.device.cuda import exchange
from minidl.device.cuda.programs import Program, Programs
from minidl.device.cuda.seam import Communicator, Message
from minidl.device.cuda.streams import EventStreams
from minidl.device.in_use import InUse
from minidl.device.turns import text_of
from minidl.errors import DeviceError, UserError
from minidl.meta import Meta
from minidl.ranks import Ranks

OPERATIONS = frozenset(exchange.MAKERS)
FAILED = 2  # the exit code of a program that an error of a device has ended (``cli.command``)
Places = tuple[int, ...]  # the addresses of the operands' blocks, and of the workspace


class Group:
    """This GPU's exchanges with those of the other ranks, on a stream that is created for the first of them.

    number  of the stream in ``streams``; 0 while there is none
    in_use  the bytes that exchanges use, by address"""

    def __init__(self, streams: EventStreams, programs: Programs) -> None:
        self._vendor, self._streams, self._programs = streams.vendor, streams, programs
        self._communicator: Communicator | None = None
        self.number = 0
        self.in_use = InUse()

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
        if not self.number:
            self.number = self._streams.add()
            self._programs = self._programs.on(self._streams.handles[self.number])
        fixed = {key: value for key, value in attrs.items() if key != "turn"}
        made = exchange.MAKERS[op_name](inputs, outputs, **fixed)
        issues = [self._issue(step, made.itemsize) for step in made.steps]
        operands = (*outputs, *inputs)
        sizes = [*map(exchange.reach, operands), made.workspace]

        def program(blocks: Sequence[int], attrs: dict[str, Any], workspace: int) -> None:
            ranks: Ranks = attrs["ranks"]
            told = {key: value for key, value in attrs.items() if key != "ranks"}
            ranks.require_alike(text_of(op_name, operands, layout=made.compared, **told))
            places = (*blocks, workspace)
            self.wait_for_compute()
            try:
                for issue in issues:
                    issue(places)
            except BaseException as error:  # the GPUs of the others would wait for ever for what this one has not sent
                ranks.fail(FAILED, f"{op_name}: {str(error) or type(error).__name__}")
                raise
            self._note(places, sizes, at_once=op_name not in BESIDE)
        return program, made.workspace

    @property
    def spans(self) -> Mapping[int, tuple[float, float]] | None:
        """When exchanges began and ended, in seconds of the streams; None: not measured."""
        return None if self._streams.spans is None or not self.number else self._streams.spans[self.number]

    # Order between streams -----------------------------------------------------------------------------------
    def wait_for_compute(self) -> None:
        """Make the next exchange start after all work issued to the compute stream so far."""
        streams = self._streams
        streams.wait(self.number, COMPUTE, streams.positions[COMPUTE])
        streams.begin_copy(self.number)

    def hold(self, stream: int, start: int, stop: int) -> None:
        """Make a stream wait for the exchanges that use the bytes from ``start`` to before ``stop``."""
        if position := self.in_use.needed(stream, start, stop):
            self._streams.wait(stream, self.number, position)

    def _note(self, places: Places, sizes: Sequence[int], *, at_once: bool) -> None:
        """Note the bytes that the exchange issued last uses, as sizes from places on.
        at_once: the compute stream waits for it as part of the call; else the call takes no time there, and the
        exchange runs beside what follows."""
        streams, in_use = self._streams, self.in_use
        if streams.done(self.number, in_use.latest):
            in_use.forget(in_use.latest)
        in_use.latest = streams.mark(self.number)
        for place, nbytes in zip(places, sizes, strict=True):
            in_use.use(place, place + nbytes)
        streams.mark(COMPUTE, (COMPUTE, 0))  # meanwhile the host may have waited for the other ranks
        if at_once:
            in_use.waited[COMPUTE] = in_use.latest
            streams.wait(COMPUTE, self.number, in_use.latest, apart=False)

    def _issue(self, step: exchange.Step, itemsize: int) -> Callable[[Places], None]:
        """Return the function that issues a step, given the operands' addresses."""
        stream = self._streams.handles[self.number]
        if isinstance(step, exchange.Copied):
            kernel, operands = self._programs.kernel(step.kernel, step.metas, {}), step.operands
            return lambda places: kernel([places[i] for i in operands], {}, 0)
        if isinstance(step, exchange.Moved):
            copy, to, origin, nbytes = self._vendor.copy, step.to, step.origin, step.to.size * itemsize
            return lambda places: copy(places[to.operand] + to.start * itemsize,
                                       places[origin.operand] + origin.start * itemsize, nbytes, stream)
        messages = [(peer, x.operand, x.start * itemsize, x.size * itemsize, sends) for peer, x, sends in step.messages]

        def send(places: Places) -> None:
            if self._communicator is None:
                raise DeviceError("NCCL: another rank has failed, and ended the exchanges of all")
            self._communicator.exchange([Message(peer, places[operand] + start, nbytes, sends)
                                         for peer, operand, start, nbytes, sends in messages], stream)
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
