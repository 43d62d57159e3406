# SPDX-License-Identifier: Apache-2.0
"""Models of torchvision and of diffusers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel, UNet2DModel
from outputs import Factory, Made, Outputs, image
from torchvision import models
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.efficientnet import FusedMBConvConfig, MBConvConfig
from torchvision.models.regnet import BlockParams
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.video import resnet

CLASSES = 10


def _of_images(make: Any, *args: Any, size: int = 32, **settings: Any) -> Factory:
    """Return a factory of a classifier of images."""
    return lambda: (make(*args, num_classes=CLASSES, **settings), (image(size),))


def _vgg() -> Made:
    layers = models.vgg.make_layers([8, "M", 16, "M", 512, "M"], batch_norm=True)
    model = models.VGG(layers, CLASSES)
    model.classifier = torch.nn.Linear(512 * 7 * 7, CLASSES)
    return model, (image(),)


def _video() -> Made:
    kinds = [resnet.Conv3DSimple] * 4
    model = resnet.VideoResNet(resnet.BasicBlock, kinds, [1, 1, 1, 1], resnet.BasicStem, CLASSES)
    return model, (torch.randn(1, 3, 4, 16, 16),)


def _efficientnet(kinds: Any) -> Made:
    model = models.EfficientNet(kinds, 0.1, last_channel=64, num_classes=CLASSES)
    return model, (image(),)


def _segmentation(make: Any) -> Made:
    model = make(weights=None, weights_backbone=None, num_classes=4)
    return Outputs(model, "out"), {"input": image(64)}


def _diffusion() -> Made:
    model = UNet2DModel(
        sample_size=16, block_out_channels=(8, 16), norm_num_groups=4, attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), layers_per_block=1,
    )  # fmt: skip
    return Outputs(model, "sample"), {"sample": image(16), "timestep": torch.tensor([7])}


def _conditioned_diffusion() -> Made:
    model = UNet2DConditionModel(
        sample_size=16, block_out_channels=(8, 16), norm_num_groups=4, attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), layers_per_block=1,
        cross_attention_dim=16,
    )  # fmt: skip
    inputs = {
        "sample": image(16, 4),
        "timestep": torch.tensor([7]),
        "encoder_hidden_states": torch.randn(1, 5, 16),
    }
    return Outputs(model, "sample"), inputs


def _autoencoder() -> Made:
    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1,
    )  # fmt: skip
    return Outputs(model, "sample"), {"sample": image()}


MODELS: dict[str, Factory] = {
    "ResNet": _of_images(models.ResNet, BasicBlock, [1, 1, 1, 1]),
    "ResNeXt": _of_images(models.ResNet, Bottleneck, [1, 1, 1, 1], groups=4, width_per_group=4),
    "VGG": _vgg,
    "DenseNet": _of_images(models.DenseNet, 8, (2, 2, 2, 2), 16),
    "GoogLeNet": _of_images(models.GoogLeNet, aux_logits=False, init_weights=False, size=64),
    "SqueezeNet": _of_images(models.squeezenet1_1),
    "MobileNetV2": _of_images(models.mobilenet_v2, width_mult=0.25),
    "MobileNetV3": _of_images(models.mobilenet_v3_small, width_mult=0.25),
    "ShuffleNetV2": _of_images(models.shufflenet_v2_x0_5),
    "MNASNet": _of_images(models.mnasnet0_5),
    "EfficientNet": partial(
        _efficientnet, [MBConvConfig(1, 3, 1, 8, 16, 1), MBConvConfig(6, 5, 2, 16, 24, 2)]
    ),
    "EfficientNetV2": partial(
        _efficientnet, [FusedMBConvConfig(1, 3, 1, 8, 8, 1), MBConvConfig(4, 3, 2, 8, 16, 2)]
    ),
    "RegNet": _of_images(
        models.RegNet, BlockParams.from_init_params(4, 16, 16.0, 2.2, 8, se_ratio=0.25)
    ),
    "ConvNeXt": _of_images(
        models.ConvNeXt,
        [CNBlockConfig(16, 32, 1), CNBlockConfig(32, 64, 1), CNBlockConfig(64, None, 1)],
    ),
    "ViT": _of_images(models.VisionTransformer, 32, 8, 2, 4, 32, 64),
    "SwinTransformer": _of_images(
        models.SwinTransformer, [4, 4], 16, [2, 2], [2, 2], [4, 4]
    ),
    "MaxViT": _of_images(
        models.MaxVit, (56, 56), 8, 7, [8, 16], [1, 1], 8, 0.0, size=56
    ),
    "LRASPP": partial(_segmentation, models.segmentation.lraspp_mobilenet_v3_large),
    "R3D": _video,
    "diffusers UNet": _diffusion,
    "diffusers conditioned UNet": _conditioned_diffusion,
    "diffusers VAE": _autoencoder,
}  # fmt: skip
