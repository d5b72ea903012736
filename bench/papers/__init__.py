"""Tables and figures that others have published, made again: one function a page, and one line in PAGES."""

from bench.papers import captured, figures, others, solvers, speeds, tables
from bench.papers.age import CAPTURE
from bench.papers.page import Page

PAGES: dict[str, Page] = {page.name: page for page in (
    Page("table1", "Table 1: the workloads", tables.workloads),
    Page("table2", "Table 2: largest batches, graph mode", tables.graph_batches),
    Page("table3", "Table 3: largest batches, eager mode", tables.eager_batches),
    Page("figure1", "Figure 1: what vDNN's synchronisation costs on VGG16", figures.synchronisation),
    Page("figure2", "Figure 2: times of InceptionV3's convolutions", figures.convolutions),
    Page("figure3", "Figure 3: when three tensors of ResNet-50 are accessed", figures.accesses),
    Page("figure8", "Figure 8: what each mechanism is worth", speeds.breakdown),
    Page("figure9", "Figure 9: speed over batches, graph mode", speeds.graph_speeds),
    Page("figure10", "Figure 10: speed over batches, eager mode", speeds.eager_speeds),
    Page("mosos", "MO-SOS, figures 4 and 5: algorithms chosen together with the tensors that leave", solvers.selection),
    Page("survey", "A survey's experiments with memonger and TFLMS", others.survey),
    Page("dtr", "DTR: overhead over the budget", others.overheads),
    Page("captured", "Programs of PyTorch at half of their peak", captured.programs, shows=CAPTURE),
)}
