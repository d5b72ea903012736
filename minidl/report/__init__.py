"""What train.py takes and tells: its flags, the bar, the closing summary, the JSON file."""
