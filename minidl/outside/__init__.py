"""The world outside of the process: files to read and to write, numbers that people type, names, and this machine."""
