"""The check of a GPU, part by part: each file measures or compares one thing, and can be run alone.

    warm           kernels compiled in parallel processes, plans listed: what is kept on disk
    properties     versions, the GPU's own words, a small network's losses
    order          each kind of call of the vendor's keeps its place on its stream
    ops            every operation against float64 formulas on the CPU; copies of every bit pattern of a half
    identity       managed and unmanaged training give the same bits
    link           bandwidths between host and device, and within the device
    bandwidth      bytes a second of kernels, beside a copy's
    speed          unmanaged training beside PyTorch eager
    host           what an operation, a launch and an event cost the host; the tracker's share
    managed        training in a small part of the memory that it needs
    prediction     what the simulator says of the same runs, and what no plan could exceed
    large          an operation and a convolution on more than 2^31 elements
    models         loss and gradients of every network against PyTorch
    convolutions   time and workspace of every plan of every convolution
    sanitizer      NVIDIA's compute-sanitizer over a few operations, where it is installed

``python bench/gpu.py`` runs them in this order, each in a process of its own.
"""
