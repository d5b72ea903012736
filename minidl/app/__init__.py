"""What train.py is made of: its flags, what fits, sessions, run folders, Ctrl-C."""
