"""Predictions and bounds for the measured runs.
Needs the results of ``link``, ``speed`` and ``managed``, and no device.

The simulator predicts, from a profile that is fitted to the measured operations. The bound, which no plan exceeds, is
that of the linear program over the measured trace.
"""

from statistics import median
from typing import Any

from bench.gpu_check.managed import LAST, course, iterate, trace_path
from bench.gpu_check.samples import fitted_profile, from_data
from bench.gpu_check.setting import Record, Setting, Training, runtime_on
from bench.gpu_check.steps import Network
from minidl.device import create, profiles
from minidl.outside.units import UNLIMITED
from minidl.plan.costs import Costs
from minidl.plan.trace_format import trace_from_json
from minidl.planning.bound import bound
from minidl.policies.auto.policy import Auto

PROFILE = "profile.json"
WITHIN = 0.10  # of the measured step times, that the simulator's are to be


def measure(setting: Setting, record: Record) -> None:
    """Write the fitted profile; record predictions beside the measurements, and the bounds."""
    found = {name: setting.results.get(name, {}).get("found", {}) for name in ("properties", "link", "speed", "managed",
                                                                              "host")}
    taken = [s for key, data in found["speed"].items() if key.startswith("samples of") and key.endswith("tf32")
             for s in from_data(data)]
    missing = [name for name, there in (("link", found["link"]), ("speed", taken)) if not there]
    if missing:
        record.leave_out(f"no profile: it is made of what {' and '.join(missing)} would have measured")
        return
    known = profiles.Profile(**found["properties"]["profile"])
    launch_s = min((each["seconds an operation"] for each in found["host"].values()
                    if isinstance(each, dict) and "seconds an operation" in each), default=known.launch_overhead_s)
    profile = fitted_profile(known, taken, found["link"], launch_s=launch_s)
    path = setting.folder / PROFILE
    path.write_text(profiles.to_json(profile), encoding="utf-8")
    record.put("profile", str(path), f"profile of {len(taken)} calls: use it as --device sim:{path}")
    costs = profile.link_costs
    name = f"sim:{path}"
    for training in setting.sizes.speed:
        seen = found["speed"].get(f"{training.name} in tf32")
        if seen:
            _beside(record, training.name, _unmanaged(name, training), median(seen["seconds"]["minidl"]))
    for training in setting.sizes.managed:
        if not setting.in_time(record, training.name):
            continue
        free, seen = (found["managed"].get(key) for key in (f"{training.name}, unmanaged", training.name))
        if free:
            _beside(record, f"{training.name}, unmanaged", _unmanaged(name, training), free["seconds"])
        if seen:
            _beside(record, f"{training.name}, managed", _managed(setting, name, training), seen["seconds"])
        if free and seen:
            _bound(setting, record, training, costs, seen)


def _beside(record: Record, what: str, predicted: float, measured: float) -> None:
    off = predicted / measured - 1
    record.put(what, {"predicted": predicted, "measured": measured, "off": off},
               f"{what}: predicted {1e3 * predicted:.1f} ms, measured {1e3 * measured:.1f} ms ({off:+.1%})")


def _unmanaged(name: str, training: Training) -> float:
    """Return the seconds of a simulated training step with unlimited memory."""
    with runtime_on(create(name), "tf32", memory_budget=UNLIMITED, deterministic=False) as runtime:
        network = Network(runtime, training)
        seconds: list[float] = [iterate(runtime, network)["seconds"] for _ in range(3)]
        return seconds[-1]


def _managed(setting: Setting, name: str, training: Training) -> float:
    """Return the seconds of a simulated training step after as many plans as were tried on the device."""
    sizes = setting.sizes
    device = create(name)
    with runtime_on(device, "tf32", memory_budget=sizes.managed_bytes, deterministic=False,
                    host_memory=min(sizes.host_bytes, device.profile.host_memory_bytes),
                    policy=Auto(rounds=sizes.plans)) as runtime:
        network = Network(runtime, training)
        seconds: list[float] = [step["seconds"] for step in course(runtime, network, sizes.plans)]
        return median(seconds[-LAST:])


def _bound(setting: Setting, record: Record, training: Training, costs: Costs, seen: dict[str, Any]) -> None:
    """Record the managed run's speed as a share of the bound, which no plan exceeds."""
    path = trace_path(setting, training)
    if not path.exists():
        record.leave_out(f"{training.name}: no trace was measured for its bound")
        return
    found = bound(trace_from_json(path.read_text(encoding="utf-8")), costs, seen["usable bytes"])
    share = found.seconds / seen["seconds"]
    record.put(f"{training.name}, bound", {"seconds": found.seconds, "unmanaged": found.unmanaged_seconds,
                                           "speed": found.speed, "share": share},
               f"{training.name}: no plan takes less than {1e3 * found.seconds:.0f} ms; the measured run reached "
               f"{share:.1%} of that speed")
