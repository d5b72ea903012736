"""The names of the operations whose result is zero, not undefined, if they reduce over no elements: sums of nothing."""

# Sums over rows, images, positions or inner dimensions: zero if there are none.
SUMS = frozenset({
    "add_rows", "batch_norm_grad_reduce", "batch_norm_relu_grad_reduce", "bias_grad", "conv2d_wgrad", "embedding_grad",
    "gather_rows_grad", "layer_norm_grad_reduce", "linear_dgrad", "linear_wgrad", "matmul",
    "scaled_dot_product_attention_grad", "sum_to"})
