"""Named GPUs as numbers: capacity, peaks, bandwidths, overheads, and how much of the peaks kernels reach.

Knows no operation and no clock. Peaks and bandwidths are the vendor's; efficiencies are calibrated (see PASCAL
below) once, against published training speeds without memory management, and are not to be tuned with a policy.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path

from msgspec import ValidationError, convert

from minidl.errors import UserError
from minidl.outside.reading import Unreadable, read_json
from minidl.outside.validation import MOST_WHOLE, is_real, shown
from minidl.plan.costs import Costs

KINDS = ("conv", "winograd", "fft", "matmul", "elementwise", "reduce", "pool", "copy")
TERMS = ("calls", "flops", "bytes", "far_bytes", "columns", "weights")  # of work, in ``rates``
OPTIONAL = ("rates", "rates_of", "cudnn_plans", "bf16_flops", "peer_bandwidth", "shared_bandwidth",
            "disk_out_bandwidth", "disk_in_bandwidth", "disk_latency_s", "host_bandwidth")
TEXTS = ("name", "title", "rates_of", "cudnn_plans")
MAY_BE_ZERO = ("link_latency_s", "launch_overhead_s", "kernel_floor_s", "half_fill_flops", "half_fill_bytes",
                "bf16_flops", "peer_bandwidth", "shared_bandwidth", "disk_latency_s")
# Bounds that include every machine: within them no modelled time overflows or becomes 0.
SLOWEST, FASTEST = 1e3, 1e24  # flops or bytes a second
LONGEST = 3600.0  # seconds of a latency, an overhead, a unit of work
LARGEST_HALF = 1e18  # flops or bytes at which a kernel reaches half of its speed
LEAST_EFFICIENCY = 1e-6
MOST_FILE_BYTES = 16 << 20
LONGEST_TEXT = 200  # characters of a name
MIB = 2**20


@dataclass(frozen=True)
class Profile:
    """A device, as the cost model and the virtual clock see it. Times in seconds, sizes in bytes, rates per second.

    memory_bytes          what tensors may use: the capacity less driver and library context.
    peak_flops            fp32 on the ordinary cores; also what Winograd and FFT kernels run on.
    tensor_flops          peak that convolutions by GEMM and matrix products use on fp32 tensors: TF32 tensor cores
                          (dense) from Ampere on, as frameworks do for convolutions; else equal to peak_flops.
    link_out_bandwidth    device to host, one direction at a time; link_in_bandwidth host to device.
    launch_overhead_s     host time of one launch; kernel_floor_s what the shortest kernel takes on the device.
    half_fill_flops       work of a kernel at which it reaches half of its efficiency, because small kernels do not
    half_fill_bytes       fill a GPU: fill(work) = work / (work + half).
    efficiency            kind of work -> fraction of its peak that a kernel reaches when it fills the GPU: of the
                          arithmetic for conv, winograd, fft and matmul, of the bandwidth (and peak) for the others.
    rates                 of a machine that was measured (``minidl.calibrate``): operation and algorithm -> term of its
                          work -> seconds a unit of it takes; see ``device/fitted.py``. Empty for one by its datasheet.
    rates_of              whose kernels these are: "cpu", or "cuda" for a GPU that was measured (``bench/gpu.py``).
    cudnn_plans           the GPU whose listed plans of cuDNN its convolutions have (``device/cuda/listed.py``), as
                          ``h200``; "": they have modelled algorithms.
    bf16_flops            peak that convolutions by GEMM and matrix products use on bf16 tensors: that of tensor cores
                          (dense, added up in fp32); 0 where these take no bf16, and it is as for fp32 tensors.
    peer_bandwidth        to another device of the machine, and from it at the same time; 0: as to the host.
    shared_bandwidth      of the device's own link, each way, if copies and exchanges between devices share it: an
                          exchange has what copies leave at that moment; 0: they do not share it.
    disk_out_bandwidth    to the file behind host memory; disk_in_bandwidth from it. By default an NVMe disk's.
    host_bandwidth        of host memory, for what the host's processors compute; by default that of two channels of
                          DDR5-4800 (76.8 GB/s), of which streaming code reaches some 80%.
    Raises UserError for a number out of its bounds (``_bounds``), or if ``efficiency`` lacks a kind of work."""

    name: str
    title: str
    memory_bytes: int
    peak_flops: float
    tensor_flops: float
    memory_bandwidth: float
    link_out_bandwidth: float
    link_in_bandwidth: float
    link_latency_s: float
    launch_overhead_s: float
    kernel_floor_s: float
    half_fill_flops: float
    half_fill_bytes: float
    host_memory_bytes: int
    efficiency: Mapping[str, float] = field(hash=False)
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    rates_of: str = "cpu"
    cudnn_plans: str = ""
    bf16_flops: float = 0.0
    peer_bandwidth: float = 0.0
    shared_bandwidth: float = 0.0
    disk_out_bandwidth: float = 2e9
    disk_in_bandwidth: float = 3e9
    disk_latency_s: float = 1e-4
    host_bandwidth: float = 60e9

    @property
    def between_devices(self) -> float:
        """The bandwidth of an exchange between devices while nothing is copied."""
        return self.peer_bandwidth or self.shared_bandwidth or min(self.link_out_bandwidth, self.link_in_bandwidth)

    @property
    def link_costs(self) -> Costs:
        """The costs of a copy: seconds per byte each way and within the device, and the latency."""
        return Costs(1.0 / self.link_out_bandwidth, 1.0 / self.link_in_bandwidth, self.link_latency_s,
                     move_seconds_per_byte=2.0 / (self.memory_bandwidth * self.efficiency["copy"]))

    def __post_init__(self) -> None:
        missing = [kind for kind in KINDS if kind not in self.efficiency]
        if missing:
            raise UserError(f"profile {self.name!r}: no efficiency for {', '.join(missing)}")
        for key, value in asdict(self).items():
            if key in TEXTS and len(value) > LONGEST_TEXT:
                raise UserError(f"{key} must be a text of at most {LONGEST_TEXT} characters, not {shown(value)}")
            if key in (*TEXTS, "efficiency", "rates"):
                continue
            least, most = _bounds(key)
            if not (is_real(value, least=least, most=most) or value == 0 and key in MAY_BE_ZERO):
                zero = "0, or " if key in MAY_BE_ZERO and least else ""
                raise UserError(f"profile {self.name!r}: {key} must be {zero}from {least:g} to {most:g}, not "
                                f"{shown(value)}")
        for kind, fraction in self.efficiency.items():
            if kind not in KINDS:
                raise UserError(f"profile {self.name!r}: unknown kind of work {shown(kind)!r}{_nearest(kind, KINDS)}")
            if not is_real(fraction, least=LEAST_EFFICIENCY, most=1.0):
                raise UserError(f"profile {self.name!r}: efficiency of {kind} must be from {LEAST_EFFICIENCY:g} to 1, "
                                f"not {shown(fraction)}")
        for work, terms in self.rates.items():
            for term, seconds in terms.items():
                if term not in TERMS:
                    raise UserError(f"profile {self.name!r}: unknown term of work {shown(term)!r}"
                                    f"{_nearest(term, TERMS)}")
                if not is_real(seconds, most=LONGEST):
                    raise UserError(f"profile {self.name!r}: rates of {shown(work)}: {term} must be from 0 to "
                                    f"{LONGEST:g}, not {shown(seconds)}")


def _bounds(key: str) -> tuple[float, float]:
    """Return the least and the greatest value of a profile's number; those in MAY_BE_ZERO may also be 0."""
    if key.endswith("memory_bytes"):
        return 1, MOST_WHOLE
    if key.endswith("_s"):
        return 0.0, LONGEST
    return (0.0, LARGEST_HALF) if key.startswith("half_fill") else (SLOWEST, FASTEST)


# Fractions of the peak, one set a family of GPUs. Calibrated on the published training speeds in images/s of ResNet-50
# (224x224, a whole step, data on the device, no memory management): P100 219 (with ResNet-152 91.8 and VGG16 154),
# V100 367, A100 938 to 1066, H100 1753 to 1898. The fractions of the last two are low because a TF32 convolution in
# NCHW stays far from the tensor cores' peak. Families without a measurement take those of their nearest relative.
PASCAL = {"conv": 0.56, "winograd": 0.675, "fft": 0.5, "matmul": 0.85,
          "elementwise": 0.75, "reduce": 0.7, "pool": 0.6, "copy": 0.75}
VOLTA = {"conv": 0.75, "winograd": 0.75, "fft": 0.5, "matmul": 0.85,
         "elementwise": 0.75, "reduce": 0.7, "pool": 0.6, "copy": 0.75}
TURING = {"conv": 0.7, "winograd": 0.7, "fft": 0.5, "matmul": 0.8,
          "elementwise": 0.75, "reduce": 0.7, "pool": 0.6, "copy": 0.75}
AMPERE = {"conv": 0.33, "winograd": 0.6, "fft": 0.5, "matmul": 0.6,
          "elementwise": 0.8, "reduce": 0.75, "pool": 0.65, "copy": 0.8}
HOPPER = {"conv": 0.24, "winograd": 0.6, "fft": 0.5, "matmul": 0.55,
          "elementwise": 0.8, "reduce": 0.75, "pool": 0.65, "copy": 0.8}
# GeForce cards from Ampere on: their TF32 peak is no higher than the fp32 one, so kernels come nearer to it.
GEFORCE = {"conv": 0.5, "winograd": 0.55, "fft": 0.4, "matmul": 0.65,
           "elementwise": 0.8, "reduce": 0.75, "pool": 0.65, "copy": 0.8}
NOMINAL = {"conv": 0.6, "winograd": 0.6, "fft": 0.4, "matmul": 0.8,
           "elementwise": 0.8, "reduce": 0.8, "pool": 0.5, "copy": 0.8}

PCIE3, PCIE4, PCIE5 = 12.4e9, 25e9, 55.6e9  # bytes/s from page-locked memory over 16 lanes, as measured one way
LINK_LATENCY_S = 10e-6

# Peaks and bandwidths: NVIDIA's datasheets, the SXM board where there are two. Capacity: what the driver reports, less
# 512 MiB of context and library memory; 15,127 MiB on the P100 is what TensorFlow 1 had there. Host memory is nominal,
# but for the P100's 256 GB (the machine of the Capuchin paper). The peaks of bf16 are the tensor cores', dense,
# added up in fp32. half_fill: about 10 us at the fp32 peak, 4 to 7 us at
# the tensor cores'; 3 us at the memory's bandwidth. Hopper's NVLink: 900 GB/s, half each way.
# Tesla P100 16 GB (SXM2, where the speeds above were measured): 10.6 TFLOP/s, HBM2 732 GB/s.
_P100 = Profile("p100", "NVIDIA P100 16 GB", 15_127 * MIB, 10.6e12, 10.6e12, 732e9, PCIE3, PCIE3, LINK_LATENCY_S,
                launch_overhead_s=5e-6, kernel_floor_s=2.5e-6, half_fill_flops=1e8, half_fill_bytes=2e6,
                host_memory_bytes=256_000_000_000, efficiency=PASCAL)
DDR4_8, DDR5_8 = 160e9, 245e9  # 80% of eight channels of DDR4-3200 and DDR5-4800, in servers
PROFILES: dict[str, Profile] = {p.name: p for p in (
    _P100,
    # The same with the paper's link: 25 GB in 1.97 s out and 2.60 s in.
    replace(_P100, name="p100-paper", title="NVIDIA P100 16 GB, the link of the Capuchin paper",
            link_out_bandwidth=12.7e9, link_in_bandwidth=9.6e9),
    # The P100 with what cuDNN 9.10, the last version for it, offers in NCHW.
    replace(_P100, name="p100-cudnn", title="NVIDIA P100 16 GB, convolutions as cuDNN has them", cudnn_plans="p100"),
    # Tesla P40: 12 TFLOP/s, 24 GB GDDR5 (less a sixteenth for ECC) at 346 GB/s.
    Profile("p40", "NVIDIA P40 24 GB", (22_919 - 512) * MIB, 12e12, 12e12, 346e9, PCIE3, PCIE3, LINK_LATENCY_S,
            launch_overhead_s=5e-6, kernel_floor_s=2.5e-6, half_fill_flops=1.2e8, half_fill_bytes=1e6,
            host_memory_bytes=256_000_000_000, efficiency=PASCAL),
    # Tesla V100 SXM2 16 GB: 15.7 TFLOP/s, 900 GB/s; its tensor cores take no fp32.
    Profile("v100", "NVIDIA V100 16 GB", (16_160 - 512) * MIB, 15.7e12, 15.7e12, 900e9, PCIE3, PCIE3, LINK_LATENCY_S,
            launch_overhead_s=5e-6, kernel_floor_s=2.5e-6, half_fill_flops=1.5e8, half_fill_bytes=2.7e6,
            host_memory_bytes=256_000_000_000, efficiency=VOLTA),
    # A100 SXM 80 GB: 19.5 TFLOP/s fp32, 156 TF32 (dense), 2,039 GB/s, PCIe 4.0.
    Profile("a100", "NVIDIA A100 80 GB", (81_920 - 512) * MIB, 19.5e12, 156e12, 2.039e12, PCIE4, PCIE4, LINK_LATENCY_S,
            launch_overhead_s=4e-6, kernel_floor_s=2e-6, half_fill_flops=1e9, half_fill_bytes=6e6,
            host_memory_bytes=1_024_000_000_000, efficiency=AMPERE, bf16_flops=312e12, host_bandwidth=DDR4_8),
    # H100 SXM 80 GB: 67 TFLOP/s fp32, 989 TF32 with sparsity, so 494 dense, 3.35 TB/s, PCIe 5.0.
    Profile("h100", "NVIDIA H100 80 GB", (81_559 - 512) * MIB, 67e12, 494e12, 3.35e12, PCIE5, PCIE5, LINK_LATENCY_S,
            launch_overhead_s=4e-6, kernel_floor_s=2e-6, half_fill_flops=2e9, half_fill_bytes=10e6,
            host_memory_bytes=1_024_000_000_000, efficiency=HOPPER, bf16_flops=989e12, host_bandwidth=DDR5_8,
            peer_bandwidth=450e9),
    # H200 SXM 141 GB: the H100's peaks, 4.8 TB/s.
    Profile("h200", "NVIDIA H200 141 GB", (143_771 - 512) * MIB, 67e12, 494e12, 4.8e12, PCIE5, PCIE5, LINK_LATENCY_S,
            launch_overhead_s=4e-6, kernel_floor_s=2e-6, half_fill_flops=2e9, half_fill_bytes=14e6,
            host_memory_bytes=1_024_000_000_000, efficiency=HOPPER, cudnn_plans="h200", bf16_flops=989e12,
            host_bandwidth=DDR5_8,
            peer_bandwidth=450e9),
    # T4: 8.1 TFLOP/s, 16 GB GDDR6 at 320 GB/s.
    Profile("t4", "NVIDIA T4 16 GB", (15_360 - 512) * MIB, 8.1e12, 8.1e12, 320e9, PCIE3, PCIE3, LINK_LATENCY_S,
            launch_overhead_s=5e-6, kernel_floor_s=2.5e-6, half_fill_flops=8e7, half_fill_bytes=1e6,
            host_memory_bytes=64_000_000_000, efficiency=TURING),
    # GeForce RTX 2080 Ti: 13.4 TFLOP/s, 616 GB/s.
    Profile("rtx2080ti", "NVIDIA RTX 2080 Ti 11 GB", (11_264 - 512) * MIB, 13.4e12, 13.4e12, 616e9, PCIE3, PCIE3,
            LINK_LATENCY_S, launch_overhead_s=5e-6, kernel_floor_s=2.5e-6, half_fill_flops=1.3e8, half_fill_bytes=1.8e6,
            host_memory_bytes=64_000_000_000, efficiency=TURING),
    # GeForce RTX 3090: 35.6 TFLOP/s, TF32 (dense) the same, 936 GB/s, PCIe 4.0.
    Profile("rtx3090", "NVIDIA RTX 3090 24 GB", (24_576 - 512) * MIB, 35.6e12, 35.6e12, 936e9, PCIE4, PCIE4,
            LINK_LATENCY_S, launch_overhead_s=4e-6, kernel_floor_s=2e-6, half_fill_flops=3.5e8, half_fill_bytes=2.8e6,
            host_memory_bytes=64_000_000_000, efficiency=GEFORCE, bf16_flops=71e12),
    # GeForce RTX 4090: 82.6 TFLOP/s, TF32 (dense) the same, 1,008 GB/s, PCIe 4.0.
    Profile("rtx4090", "NVIDIA RTX 4090 24 GB", (24_564 - 512) * MIB, 82.6e12, 82.6e12, 1.008e12, PCIE4, PCIE4,
            LINK_LATENCY_S, launch_overhead_s=4e-6, kernel_floor_s=2e-6, half_fill_flops=6e8, half_fill_bytes=3e6,
            host_memory_bytes=64_000_000_000, efficiency=GEFORCE, bf16_flops=165e12),
    # Not a GPU: round numbers of a 2-core machine, the clock of the CPU device on virtual time.
    Profile("cpu", "a 2-core machine (nominal)", 16 * 2**30, 100e9, 100e9, 10e9, 5e9, 5e9, LINK_LATENCY_S,
            launch_overhead_s=5e-6, kernel_floor_s=2e-6, half_fill_flops=1e5, half_fill_bytes=1e4,
            host_memory_bytes=16 * 2**30, efficiency=NOMINAL),
)}


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"; did you mean {', '.join(near)}?" if near else f"; known: {', '.join(names)}"


def get(name: str) -> Profile:
    """Return the profile of this name. Raises UserError, with the nearest names, if there is none."""
    profile = PROFILES.get(name.lower())
    if profile is None:
        raise UserError(f"no GPU profile {name!r}{_nearest(name.lower(), list(PROFILES))}")
    return profile


def named(name: str) -> Profile:
    """Return the profile of this name or, if it ends in ``.json``, of this file. Raises UserError if there is none."""
    return load(name) if name.endswith(".json") else get(name)


@cache
def for_bf16(profile: Profile) -> Profile:
    """Return the profile with the peak rate of bf16 products in ``tensor_flops``; unchanged if it has no such rate."""
    return replace(profile, tensor_flops=profile.bf16_flops) if profile.bf16_flops else profile


def shared(profile: Profile, count: int) -> Profile:
    """Return the profile of one of ``count`` devices behind one switch: each has a share of the host's bandwidth.

    Without a ``peer_bandwidth`` exchanges between the devices share a device's own link with its copies.
    """
    if count == 1:
        return profile
    out, into = profile.link_out_bandwidth, profile.link_in_bandwidth
    return replace(profile, link_out_bandwidth=out / count, link_in_bandwidth=into / count,
                   shared_bandwidth=0.0 if profile.peer_bandwidth else min(out, into))


def without_tf32(profile: Profile) -> Profile:
    """Return the profile with exact products of fp32 tensors, on the ordinary cores."""
    return replace(profile, tensor_flops=profile.peak_flops)


def to_json(profile: Profile) -> str:
    """Return all fields of a profile as a JSON object; ``load`` reads it back."""
    return json.dumps(asdict(profile), indent=2) + "\n"


def is_own(head: bytes) -> bool:
    """Return True if a file with this beginning was written by ``to_json``."""
    return head.startswith(b'{\n  "name": ') and b'\n  "memory_bytes": ' in head


def load(path: str | Path) -> Profile:
    """Return the profile in a JSON file with the fields of Profile; OPTIONAL ones may be missing.
    Raises UserError if the file cannot be read, or if a field is missing, unknown or out of its bounds."""
    try:
        data = read_json(path, most=MOST_FILE_BYTES)
    except Unreadable as error:
        raise UserError(f"cannot read profile {path}: {error.why}") from None
    if not isinstance(data, dict):
        raise UserError(f"profile {path} must be one JSON object, not a {type(data).__name__}")
    names = [f.name for f in fields(Profile)]
    for key in data:
        if key not in names:
            raise UserError(f"profile {path}: unknown field {shown(key)!r}{_nearest(key, names)}")
    missing = [name for name in names if name not in data and name not in OPTIONAL]
    if missing:
        raise UserError(f"profile {path}: missing {', '.join(missing)}")
    try:
        return convert(data, Profile)
    except (ValidationError, UserError) as error:
        raise UserError(f"profile {path}: {error}") from None
