"""Write the page of arguments that differ from PyTorch's: ``python -m bench.torch_names``."""

from pathlib import Path

from bench.support.torch_names import page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "pytorch_names.md"

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
