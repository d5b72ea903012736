"""A small training for tests that kill programs, with everything that a checkpoint must store."""

from minidl import nn

STEPS = 12
# A checkpoint must store: Adam's moments and count, statistics, dropout's seeds, the position in two epochs of 9 steps,
# a rate that changes with every step. The budget forces evictions.
TRAINING = ["--model", "killed:network", "--data", "digits", "--image-size", "8", "--batch", "150",
            "--steps", str(STEPS), "--optimizer", "adam", "--schedule", "cosine", "--warmup-steps", "3",
            "--clip-grad", "0.5", "--seed", "5", "--device", "cpu:virtual", "--policy", "recompute",
            "--memory-budget", "700KiB", "--host-memory", "8MiB"]


def network(num_classes=10, in_channels=1):
    """Convolution, batch norm and dropout for images of 8x8 pixels."""
    return nn.Sequential(nn.Conv2d(in_channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(8 * 16, num_classes))
