"""What a command tells on stderr while it goes on: a bar, or in a pipe a line a step."""

import re

PROGRESS = re.compile(r"\||^\d+/\d+: ")
