"""The device and the policy that the flags ask for, and the checks of other flags against these two."""

import os
from pathlib import Path

from minidl import device as devices
from minidl import policies
from minidl.cli.app.files import check_places
from minidl.cli.app.options import Options
from minidl.cli.app.run_folder import RunFolder
from minidl.device import Device
from minidl.device.numba_settings import require_numba
from minidl.errors import UserError
from minidl.plan.formats import read_plan
from minidl.plan.policy import Policy
from minidl.policies.saved import SavedPlanPolicy


def choose_device(options: Options) -> Device:
    """The device asked for; prints which one and why. Raises UserError."""
    require_numba()  # plans are compiled code on every device
    name, why = options.device, "as asked for"
    if name == "auto":
        if options.data == "synthetic":
            name, why = "sim:p100", "auto: synthetic data teaches nothing but memory and time; --device cpu computes"
        else:
            name, why = "cpu", "auto: real data, and no GPU that this version could use"
    device = devices.create(name, precision=options.precision, cupti=options.cupti)
    device.attention = options.attention
    print(f"device {name} ({why})", flush=True)
    return device


def choose_policy(options: Options) -> Policy:
    """The policy by its name, or one that follows the plan of a file. Raises UserError."""
    return SavedPlanPolicy(read_plan(options.plan)) if options.plan else policies.create(options.policy)


def refuse_what_cannot_be_kept(options: Options, device: Device) -> None:
    """Raises UserError, before any training, for files that cannot be written, for flags that ask for values which the
    device does not compute, and for a run folder in which there is a run already."""
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
