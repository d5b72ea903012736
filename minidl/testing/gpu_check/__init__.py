"""The check of a GPU, part by part: each file measures or compares one thing, and can be run alone.

    properties     versions, the GPU's own words, a small network's losses
    ops            every operation against float64 formulas on the CPU
    identity       managed and unmanaged training give the same bits
    link           bandwidths between host and device, and within the device
    speed          unmanaged training beside PyTorch eager
    host           what an operation, a launch and an event cost the host; the tracker's share
    managed        training in a small part of the memory that it needs
    prediction     what the simulator says of the same runs, and what no plan could exceed
    models         loss and gradients of every network against PyTorch
    convolutions   time and workspace of every plan of every convolution

``python bench/gpu.py`` runs them in this order, each in a process of its own.
"""
