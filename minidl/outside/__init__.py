"""The world outside the process: files to read and write, numbers that people type, plug-ins, and this machine."""
