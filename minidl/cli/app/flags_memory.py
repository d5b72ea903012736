"""The flags of train.py for the device and the management of its memory, and those that turn features off."""

import argparse

from minidl import placements, policies
from minidl.cli.app import kinds
from minidl.cli.app.kinds import CHOSEN
from minidl.cli.app.options import HOST_UPDATE, POLICY
from minidl.device.contract import ATTENTION
from minidl.device.precision import DEFAULT, PRECISIONS
from minidl.ranks.group import DIVIDES, NOTHING


def add_device_and_memory(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the device, its memory and the policy that manages it."""
    group = parser.add_argument_group("device and memory")
    group.add_argument("--device", default="auto", metavar="auto|cuda|cpu|sim:NAME",
                       help="sim:p100, sim:h100, ... compute no values, but know memory exactly and model time "
                            "(default: auto, which is cpu with real data and sim:p100 with synthetic)")
    group.add_argument("--attention", choices=ATTENTION, default=ATTENTION[0],
                       help="as one operation, which keeps no scores (fused), or as products and a softmax (default: "
                            "auto, which is fused on a GPU where cuDNN has it, and composed elsewhere)")
    group.add_argument("--precision", type=kinds.precision, default=DEFAULT, metavar="|".join(PRECISIONS),
                       help="fp32: exact; tf32: products on tensor cores, where a GPU has them for fp32; bf16: half "
                            f"the memory for activations, parameters in fp32 (default: {DEFAULT})")
    group.add_argument("--cupti", action="store_true",
                       help="with --device cuda, time the kernels themselves in the iteration that plans are made from "
                            "(needs cupti-python)")
    group.add_argument("--memory-budget", type=kinds.budget, metavar="16GiB|50%",
                       help="device memory, in bytes or as a part of what an unmanaged run needs "
                            "(default: the device's; on cpu at most 60%% of the free memory)")
    group.add_argument("--host-memory", type=kinds.size, metavar="64GiB",
                       help="for swapped tensors (default: the device's; on cpu at most 30%% of the free memory)")
    group.add_argument("--spill", type=kinds.path, metavar="DIR",
                       help="continue host memory in a file in this folder, which is gone when the run ends")
    group.add_argument("--spill-bytes", type=kinds.size, metavar="256GiB", help="the size of that file")
    group.add_argument("--slices", type=kinds.slices, default=CHOSEN, metavar="N|auto",
                       help="cut each batch in N parts along its first dimension, so that no operation needs all of it "
                            "at once; gradients are those of the whole batch (default: auto, which is 1 unless one "
                            "operation takes most of the budget, or the batch does not fit whole)")
    group.add_argument("--ranks", type=kinds.ranks, metavar="mpi|N",
                       help="train on several devices, each with a slice of every batch: mpi, one "
                            "of the processes that mpiexec has started; N, so many simulated devices")
    group.add_argument("--ranks-divide", choices=DIVIDES, default=NOTHING,
                       help="what each rank keeps only its rows of: the optimizer's states (ZeRO-1), or states and "
                            "gradients (ZeRO-2); results keep their bits (default: nothing)")
    group.add_argument("--shard-bytes", type=kinds.shard_bytes, default=CHOSEN, metavar="64MiB|auto",
                       help="keep larger parameters in shards of so many bytes along their first dimension (default: "
                            "auto, which is whole unless not even a batch of 1 fits so)")
    group.add_argument("--host-update", choices=HOST_UPDATE, default=HOST_UPDATE[0],
                       help="always: keep the optimizer's states in host memory and update there; auto: if a step is "
                            "predicted to be faster so, on a simulated device (default: never)")
    decides = group.add_mutually_exclusive_group()
    decides.add_argument("--policy", type=kinds.policy, metavar="NAME",
                         help=f"what to do when memory is short: {', '.join(policies.choices())} (default: {POLICY}); "
                              "docs/policies.md has the systems of the literature, too")
    decides.add_argument("--plan", type=kinds.path, metavar="FILE",
                         help="follow this plan, made earlier for the same step, as it is")
    group.add_argument("--placement", type=kinds.placement, default=placements.DEFAULT,
                       metavar="|".join(placements.names()),
                       help=f"where blocks go in device memory (default: {placements.DEFAULT}); bfc and caching place "
                            "as TensorFlow and PyTorch do, and move nothing")


def add_switches(parser: argparse.ArgumentParser) -> None:
    """Add the flags that turn off features which are on by default."""
    group = parser.add_argument_group("to see what a part is worth, turn it off")
    group.add_argument("--no-decoupled-swap", dest="decoupled_swap", action="store_false",
                       help="a copy overlaps one operation, and the next waits for it")
    group.add_argument("--no-collective", dest="collective", action="store_false",
                       help="recomputing a tensor keeps nothing else that it makes on the way")
    group.add_argument("--no-feedback", dest="feedback", action="store_false", help="the first plan stays as it is")
    group.add_argument("--no-measured-times", dest="measured_times", action="store_false",
                       help="plan with durations estimated from FLOPs, not with measured ones")
    group.add_argument("--no-fused", dest="fused", action="store_false",
                       help="ReLU is an operation of its own behind batch norm and convolution, as in older frameworks")
