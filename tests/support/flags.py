"""Command lines of train.py that several tests share."""

NET = ["--model", "resnet18", "--image-size", "64", "--batch", "256", "--device", "sim:p100", "--memory-budget", "60%"]
