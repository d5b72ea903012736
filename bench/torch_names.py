"""Write the page of arguments that differ from PyTorch's: ``python -m bench.torch_names``."""

from bench.support.torch_names import PAGE, page

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
