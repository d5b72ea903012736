"""Makes the device, the policy and the ranks that the flags name, and checks other flags against them."""

import os
from dataclasses import replace
from pathlib import Path

from minidl import device as devices
from minidl import policies
from minidl.cli.app.default_memory import default_memory
from minidl.cli.app.files import check_places
from minidl.cli.app.kinds import Share
from minidl.cli.app.options import Options
from minidl.cli.app.run_folder import RunFolder
from minidl.device import Device
from minidl.device.numba_settings import require_numba
from minidl.errors import UserError
from minidl.plan.formats import read_plan
from minidl.plan.policy import Policy
from minidl.policies.saved import SavedPlanPolicy
from minidl.ranks import Ranks, modelled, mpi


def choose_ranks(options: Options) -> Ranks | None:
    """Return the ranks that ``--ranks`` asks for; None for one device alone. Raises UserError if MPI is missing."""
    if options.ranks is None:
        return None
    divide = options.ranks_divide
    made = mpi(divide=divide) if isinstance(options.ranks, str) else modelled(options.ranks, divide=divide)
    return made if made.count > 1 else None


def agree_on_memory(options: Options, device: Device, ranks: Ranks | None) -> Options:
    """Return the options with a budget and host memory, in bytes, that every rank has:
    the smallest of all ranks' values. Without flags, each rank gets its share of the default host memory and, if the
    device's memory is the machine's own, of the default budget. A budget in percent stays one.
    Raises UserError if the ranks were started with different flags."""
    if ranks is None:
        return options
    budget, host = default_memory(device)
    budget //= ranks.count if device.arena_in_host_memory else 1
    host = host // ranks.count if options.host_memory is None else options.host_memory
    if isinstance(options.memory_budget, int):
        budget = options.memory_budget
    flags = replace(options.without_files, memory_budget=None, host_memory=None, workers=0)  # these change no result
    every = ranks.agree((budget, host, flags))
    other = next((rank for rank, (*_, theirs) in enumerate(every) if theirs != every[0][2]), None)
    if other is not None:
        raise UserError(f"rank {other} was started with other flags than rank 0: all ranks take the same ones")
    least = min(found[0] for found in every)
    return replace(options, host_memory=min(found[1] for found in every),
                   memory_budget=options.memory_budget if isinstance(options.memory_budget, Share) else least)


def choose_device(options: Options, ranks: Ranks | None = None) -> Device:
    """Return the device that ``--device`` names, and print its name and the reason. Raises UserError if it is missing.
    ranks: each of several ranks on a machine gets a GPU of its own."""
    require_numba()  # plans are compiled code on every device
    name, why = options.device, "as asked for"
    if name == "auto":
        if options.data == "synthetic":
            name, why = "sim:p100", "auto: synthetic data teaches nothing but memory and time; --device cpu computes"
        else:
            name, why = "cpu", "auto: real data, and no GPU that this version could use"
    sharing = options.ranks if isinstance(options.ranks, int) else 1
    device = devices.create(name, precision=options.precision, cupti=options.cupti, sharing=sharing,
                            local_rank=ranks.local if ranks is not None else 0)
    device.attention = options.attention
    print(f"device {name} ({why})", flush=True)
    return device


def choose_policy(options: Options) -> Policy:
    """Return the policy that ``--policy`` names, or with ``--plan FILE`` a policy that follows the plan in that file.
    Raises UserError for an unknown name or an unreadable file."""
    return SavedPlanPolicy(read_plan(options.plan)) if options.plan else policies.create(options.policy)


def refuse_what_cannot_be_kept(options: Options, device: Device) -> None:
    """Raise UserError, before any training, for flags that this run cannot satisfy:
    an output file that cannot be written, an output that needs values on a device that computes none, or a run
    folder that another run occupies."""
    check_places(options)
    for flag, wanted, what in (("--save-weights", options.save, "values that could be kept"),
                               ("--weights", options.weights, "values to start from"),
                               ("--checkpoint-every", options.checkpoint_every, "values that could be kept"),
                               ("--resume", options.resume, "values that could be kept")):
        if wanted and not device.has_values:
            raise UserError(f"{flag}: {device.name} computes no {what}; --device cpu does")
    if options.run is None:
        return
    folder = Path(options.run)
    if os.path.lexists(folder) and not folder.is_dir():
        raise UserError(f"--run-dir {folder}: that is a file")
    if options.resume is None:
        RunFolder(folder, keep=options.keep).require_free()
