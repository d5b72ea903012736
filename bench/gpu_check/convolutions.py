"""Time and workspace of every plan of every convolution of known networks, as cuDNN lists them on this GPU."""

from dataclasses import asdict
from typing import Any

from bench.gpu_check.setting import Record, Setting, Training, runtime_on
from bench.gpu_check.steps import program
from minidl.device.cost_model import algorithms as modelled_algorithms
from minidl.device.cuda import convolution
from minidl.device.cuda.device import CudaDevice
from minidl.device.cuda.seam import Convolution
from minidl.device.dry import DryDevice
from minidl.outside.units import UNLIMITED


def measure(setting: Setting, record: Record) -> None:
    """Record for each network and precision the plans of its convolutions, each with its seconds and workspace bytes.
    """
    for training in setting.sizes.convolutions:
        for precision in setting.sizes.precisions:
            with setting.open(precision) as device:
                if not isinstance(device, CudaDevice):
                    record.leave_out(f"{device.name} has no plans of cuDNN")
                    return
                found: list[dict[str, Any]] = []
                wanted = convolutions_of(device, training, precision)
                for each in wanted:
                    if setting.seconds_left() < 0:
                        record.leave_out(f"{len(wanted) - len(found)} convolutions of {training.name} in {precision}: "
                                         "the time is up")
                        break
                    found.append({"convolution": asdict(each), "plans": [asdict(p) for p in device.plans.of(each)]})
            count = sum(len(each["plans"]) for each in found)
            untimed = sum(plan["seconds"] is None for each in found for plan in each["plans"])
            record.put(f"{training.name} in {precision}", found,
                       f"{training.name} in {precision}: {len(found)} convolutions, {count} plans")
            if untimed:
                record.fail(f"{training.name} in {precision}: {untimed} plans were not timed")


def convolutions_of(device: CudaDevice, training: Training, precision: str) -> list[Convolution]:
    """The convolutions that one step asks cuDNN for; cuDNN is not asked."""
    listing = _Listing(device)
    with runtime_on(listing, precision, memory_budget=UNLIMITED) as runtime:
        runtime.dry_run(program(training)(runtime))
    return sorted(listing.found, key=str)


class _Listing(DryDevice):
    """A dry run that collects a step's convolutions; what the simulator models of cuDNN chooses their algorithms."""

    def __init__(self, device: CudaDevice) -> None:
        super().__init__(device)
        self.found: set[Convolution] = set()
        self._tf32 = device.programs.tf32

    def algorithms(self, op_name: str, inputs: Any, outputs: Any, attrs: Any, cost: Any) -> Any:
        if op_name in convolution.KINDS:
            steps = convolution.steps(op_name, inputs, outputs[0], attrs, tf32=self._tf32)
            self.found.add(steps.convolution)
        return modelled_algorithms(self.profile, op_name, inputs, outputs, attrs, cost)
