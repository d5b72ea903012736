"""Files to read and write, numbers that users type, plug-ins, and facts about this machine: checked at one place."""
