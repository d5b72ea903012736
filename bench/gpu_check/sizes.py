"""How large everything is: the whole check, a quick one, and the smallest that still runs every line."""

from dataclasses import replace

from bench.gpu_check.setting import Sizes, Stack, Training
from minidl.kernels.cuda import launch

CUT = {"layers": 2, "vocabulary": 4096}  # of networks whose weights, gradients and float64 copies exceed a GPU
# Every network, those first that differ most: side and batch are small, so that float64 is fast too.
MIRRORED = (
    Training("resnet50", 4, side=64), Training("vgg16", 4, side=64), Training("bert-base", 2, length=64),
    Training("gpt2", 2, length=64), Training("unet", 2, side=48), Training("densenet121", 4, side=64),
    Training("inception_v4", 2, side=139), Training("inception_v3_aux", 2, side=299), Training("vgg11_bn", 4, side=64),
    Training("resnet18", 4, side=64), Training("lenet", 8), Training("mlp", 8), Training("resnet20", 8),
    Training("inception_v3", 2, side=139), Training("unet-small", 2, side=48), Training("bert-tiny", 2, length=64),
    Training("bert-mini", 2, length=64), Training("bert-small", 2, length=64), Training("bert-medium", 2, length=64),
    Training("resnet34", 4, side=64), Training("resnet101", 4, side=64), Training("resnet152", 4, side=64),
    Training("densenet169", 4, side=64), Training("densenet201", 4, side=64), Training("vgg11", 4, side=64),
    Training("vgg13", 4, side=64), Training("vgg19", 4, side=64), Training("vgg13_bn", 4, side=64),
    Training("vgg16_bn", 4, side=64), Training("vgg19_bn", 4, side=64), Training("bert-large", 2, length=64),
    Training("gpt2-medium", 1, length=64), Training("gpt2-large", 1, length=64), Training("gpt2-xl", 1, length=64),
    Training("resnext50_32x4d", 4, side=64), Training("resnext101_32x8d", 4, side=64),
    Training("resnext101_64x4d", 4, side=64), Training("mobilenet_v3_small", 4, side=128),
    Training("mobilenet_v3_large", 4, side=128), Training("efficientnet_b0", 4, side=128),
    Training("efficientnet_b2", 4, side=128), Training("efficientnet_b4", 4, side=128),
    Training("vit_b_16", 4, side=64), Training("vit_b_32", 4, side=64), Training("vit_l_16", 4, side=64),
    Training("convnext_tiny", 4, side=64), Training("convnext_small", 4, side=64),
    Training("convnext_base", 4, side=64),
    Training("llama-tiny", 2, length=64), Training("llama-1b", 1, length=64, options=CUT),
    Training("llama-3b", 1, length=64, options=CUT), Training("llama-8b", 1, length=64, options=CUT),
    Training("qwen2.5-0.5b", 1, length=64, options=CUT), Training("qwen2.5-1.5b", 1, length=64, options=CUT),
    Training("qwen2.5-3b", 1, length=64, options=CUT), Training("qwen2.5-7b", 1, length=64, options=CUT),
    Training("t5-small", 2, length=64), Training("t5-base", 2, length=64),
    Training("t5-large", 1, length=64, options=CUT), Training("t5-3b", 1, length=64, options=CUT),
    Training("flan-t5-small", 2, length=64), Training("flan-t5-base", 2, length=64),
    Training("flan-t5-large", 1, length=64, options=CUT), Training("flan-t5-xl", 1, length=64, options=CUT))

FULL = Sizes(
    ops_block=4 * launch.THREADS, ops_every=1, mirrored=MIRRORED,
    convolutions=(Training("resnet50", 256), Training("vgg16", 128)), link_bytes=256 * 2**20, calls=300,
    host=(Training("resnet50", 8), Training("bert-base", 8), Training("resnet50", 256)),
    speed=(Training("resnet50", 256), Training("vgg16", 128), Training("bert-base", 64)), rounds=7, steps=4,
    managed=(Training("resnet50", 1014), Training("resnet50", 1440)), managed_bytes=16 * 2**30,
    host_bytes=40 * 2**30, plans=8,
    identity=(Training("resnet50", 16), Training("vgg16", 8), Training("bert-base", 4)))

QUICK = replace(
    FULL, ops_every=6, mirrored=MIRRORED[:4], convolutions=(Training("resnet50", 64),), rounds=3, steps=2,
    managed=(Training("resnet50", 1014),), plans=6, identity=(Training("resnet50", 16),),
    stack=Stack(8, 1024, 16, 4, 1024))

IMAGE, SMALL, MAPS = Training("resnet20", 2, side=16), Training("lenet", 2), Training("lenet", 64)
TINY = Sizes(
    ops_block=64, ops_every=1000, mirrored=(Training("lenet", 2),), convolutions=(IMAGE,), link_bytes=1 << 16, calls=3,
    host=(SMALL,), speed=(Training("bert-tiny", 2, length=16, options={"vocabulary": 100}),), rounds=2, steps=1,
    managed=(MAPS,), managed_bytes=3 << 20, host_bytes=64 << 20, plans=1, identity=(MAPS,), dtypes=("float32",),
    precisions=("tf32",), large=(3, 6), maps=(2, 8, 4, 4), stack=Stack(3, 64, 2, 4, 48))

NAMED = {"full": FULL, "quick": QUICK, "tiny": TINY}
