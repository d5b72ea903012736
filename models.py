"""``minidl.models`` by the name that it had in this checkout, for programs that lie beside it. It is not installed."""

import pkgutil
import sys
from importlib import import_module

from minidl import models

sys.modules[__name__] = models
for module in pkgutil.iter_modules(models.__path__):
    sys.modules[f"{__name__}.{module.name}"] = import_module(f"{models.__name__}.{module.name}")
