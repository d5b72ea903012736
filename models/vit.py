"""Vision Transformer: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.


Section 3.1 and Table 1: patches of an image are tokens; a transformer with layer normalisation before each half of a
layer reads them and one token more, whose last state gives the classes. Parameters are named as in torchvision. The
number of positions is that of the image's patches, so an image has the size that the network was made for, a multiple
of a patch.

Each forward() rebinds one name line by line, so that the previous value is freed.
"""

from collections import OrderedDict
from functools import partial

from minidl import nn
from minidl.dispatch import donate
from minidl.errors import ShapeError, UserError
from minidl.ops import concat, expand, linear_, permute, reshape
from minidl.tensor import Tensor

INITIAL_STD = 0.02
EPSILON = 1e-6  # of layer normalisation


class Attention(nn.Module):
    """Self-attention: [N, L, D] -> [N, L, D].
    in_proj_weight has queries', keys' and values' weights one below the other.

    Slices of the weight, not of the product, are multiplied.
    """

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.in_proj_weight = nn.parameter((3 * width, width))
        self.in_proj_bias = nn.parameter((3 * width,))
        self.out_proj = nn.Linear(width, width)
        self.no_dropout = nn.Dropout(0.0)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.constant_(self.in_proj_bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        d = x.shape[2]
        q, k, v = (linear_(x, nn.lowered(self.in_proj_weight[n * d:(n + 1) * d]), self.in_proj_bias[n * d:(n + 1) * d])
                   for n in range(3))
        x = nn.attend(donate(q), k, v, heads=self.heads, dropout=self.no_dropout)
        return self.out_proj(x)


class EncoderLayer(nn.Module):
    """A layer: x + attention(norm(x)), then x + mlp(norm(x)): [N, L, D] -> [N, L, D]."""

    def __init__(self, width: int, heads: int) -> None:
        self.ln_1 = nn.LayerNorm(width, EPSILON)
        self.self_attention = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width, EPSILON)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.0), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.self_attention(self.ln_1(x))
        x = donate(y) + x
        y = self.mlp(self.ln_2(x))
        return donate(y) + x


class Encoder(nn.Module):
    """The layers and a last norm, after the positions are added: [N, L, D] -> [N, L, D]."""

    def __init__(self, depth: int, width: int, heads: int, tokens: int) -> None:
        self.pos_embedding = nn.parameter((1, tokens, width))
        nn.init.normal_(self.pos_embedding, 0.0, INITIAL_STD)
        self.layers = nn.Sequential(OrderedDict((f"encoder_layer_{n}", EncoderLayer(width, heads))
                                                for n in range(depth)))
        self.ln = nn.LayerNorm(width, EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        x = donate(x) + nn.lowered(self.pos_embedding)
        x = self.layers(x)
        return self.ln(x)


class VisionTransformer(nn.Module):
    """Vision Transformer: [N, in_channels, image_size, image_size] -> [N, num_classes].
    Raises UserError unless ``image_size`` is a multiple of the patch; ShapeError for images of another size."""

    def __init__(self, patch: int, depth: int, width: int, heads: int, *, num_classes: int = 1000,
                 in_channels: int = 3, image_size: int = 224) -> None:
        if image_size % patch:
            raise UserError(f"a side of an image must be a multiple of {patch} pixels, not {image_size}")
        self.image_size = image_size
        self.class_token = nn.parameter((1, 1, width))
        nn.init.normal_(self.class_token, 0.0, INITIAL_STD)
        self.conv_proj = nn.Conv2d(in_channels, width, patch, patch)
        self.encoder = Encoder(depth, width, heads, (image_size // patch) ** 2 + 1)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, num_classes)))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                assert module.bias is not None
                nn.init.constant_(module.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] != (self.image_size, self.image_size):
            raise ShapeError(f"this network reads images of {self.image_size} x {self.image_size} pixels, not "
                             f"{x.shape[2]} x {x.shape[3]}")
        x = self.conv_proj(x)
        n, width = x.shape[:2]
        x = permute(reshape(x, (n, width, -1)), (0, 2, 1))
        token = expand(nn.lowered(self.class_token), (n, 1, width))
        x = concat([token, x], 1)
        x = self.encoder(x)
        return self.heads(x.narrow(1, 0, 1).reshape((n, width)))


vit_b_16 = partial(VisionTransformer, 16, 12, 768, 12)
vit_b_32 = partial(VisionTransformer, 32, 12, 768, 12)
vit_l_16 = partial(VisionTransformer, 16, 24, 1024, 16)
