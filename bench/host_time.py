"""Host time per operation on the simulator: infer, track, allocate, free, schedule, and the gradient's bookkeeping.

    python -m bench.host_time [--model resnet50] [--batch 64] [--repeat 50] [--cuda] [--profile]

A step is timed as a whole (forward, backward, optimizer) and divided by its operations; the median over the repeats is
what counts. ``--cuda`` times the CUDA device instead, kernels planned and arguments packed, over a vendor that does
nothing. ``--profile`` says where the time goes. The target is 25 microseconds an operation.
"""

import argparse
import cProfile
import pstats
import statistics
import time

import models
from bench.null_cuda import NullCuda
from minidl import Runtime
from minidl.device import Device, create, profiles
from minidl.meta import int64
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD


def null_device() -> Device:
    """The CUDA device as on an H200, without the calls of the vendor."""
    from minidl.device.cuda.device import CudaDevice
    from minidl.kernels.cuda import KERNELS

    device = CudaDevice("cuda", profiles.get("h200"), NullCuda(), KERNELS)
    device.has_values = False  # inputs are made by shape alone, as on the simulator
    return device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--policy", default="passive")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    entry = models.find(args.model)
    device = null_device() if args.cuda else create("sim:p100")
    with Runtime(device=device, policy=args.policy) as runtime:
        model = models.create(args.model)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

        def step() -> None:
            with runtime.iteration():
                if entry.text is not None:
                    loss = model(*entry.text_batch(runtime, args.batch, entry.text))
                else:
                    images = runtime.tensor(None, shape=(args.batch, *entry.input_shape))
                    labels = runtime.tensor(None, shape=(args.batch,), dtype=int64)
                    loss = cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        for _ in range(5):
            step()
        times, ops = [], 0
        for _ in range(args.repeat):
            before = runtime.stats().calls
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
            ops = runtime.stats().calls - before
        swapped = runtime.stats().swapped_out_bytes
        per_op = [1e6 * t / ops for t in times]
        print(f"{args.model} at {args.batch}, {args.policy}, swapped {swapped / 1e9:.1f} GB: {ops} operations a step; "
              f"{statistics.median(per_op):.1f} microseconds an operation (median of {args.repeat}; "
              f"min {min(per_op):.1f}, max {max(per_op):.1f})")
        if args.profile:
            profiler = cProfile.Profile()
            with profiler:
                for _ in range(10):
                    step()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
