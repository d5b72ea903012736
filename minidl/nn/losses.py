"""Losses as modules, with the names and arguments of torch.nn. All arithmetic is in minidl.ops."""

from minidl.nn.module import Module
from minidl.ops import losses
from minidl.tensor import Tensor


class Loss(Module):
    """The base class of losses, with a ``reduction``: mean, sum or none."""

    weight: Tensor | None

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction


class CrossEntropyLoss(Loss):
    """Softmax cross-entropy, averaged over the rows whose label is not ``ignore_index``, weighted by class.
    logits: [N, classes, ...], labels: [N, ...] integers, or probabilities like logits; weight: [classes]."""

    def __init__(self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean",
                 label_smoothing: float = 0.0) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return losses.cross_entropy(logits, labels, self.weight, ignore_index=self.ignore_index,
                                    reduction=self.reduction, label_smoothing=self.label_smoothing)


class NLLLoss(Loss):
    """Negative log-likelihood -log_probabilities[n, label], averaged over rows whose label is not ``ignore_index``."""

    def __init__(self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, log_probabilities: Tensor, labels: Tensor) -> Tensor:
        return losses.nll_loss(log_probabilities, labels, self.weight, ignore_index=self.ignore_index,
                               reduction=self.reduction)


class MSELoss(Loss):
    """Mean squared error: (x - target)^2, averaged over all elements by default (``reduction``)."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return losses.mse_loss(x, target, reduction=self.reduction)


class L1Loss(Loss):
    """Mean absolute error: |x - target|, averaged over all elements by default (``reduction``)."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return losses.l1_loss(x, target, reduction=self.reduction)


class BCELoss(Loss):
    """Binary cross-entropy -(target log(x) + (1 - target) log(1 - x)) of probabilities x, averaged by default."""

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)

    def forward(self, p: Tensor, target: Tensor) -> Tensor:
        return losses.binary_cross_entropy(p, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(Loss):
    """Binary cross-entropy of sigmoid(x), averaged and computed stably from x.
    ``pos_weight`` multiplies the loss of positive targets."""

    pos_weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean",
                 pos_weight: Tensor | None = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return losses.binary_cross_entropy_with_logits(x, target, self.weight, reduction=self.reduction,
                                                       pos_weight=self.pos_weight)
