# SPDX-License-Identifier: Apache-2.0
"""Models of torchaudio."""

from __future__ import annotations

import torch
from outputs import Factory, First, Made
from torchaudio import models


def _conformer() -> Made:
    model = models.Conformer(16, 2, 32, 1, 5)
    return model, (torch.randn(1, 10, 16), torch.tensor([10]))


def _emformer() -> Made:
    model = models.Emformer(16, 2, 32, 1, 4, right_context_length=1)
    return model, (torch.randn(1, 9, 16), torch.tensor([8]))


def _wav2vec2() -> Made:
    model = models.wav2vec2_model(
        "group_norm", [(16, 10, 5), (16, 3, 2), (16, 3, 2)], True, 32, 0.0, 8, 4, 1, 4, 0.0, 64,
        0.0, 0.0, False, 0.0, None,
    )  # fmt: skip
    return First(model), (torch.randn(1, 400),)


def _hubert() -> Made:
    model = models.wav2vec2_model(
        "layer_norm", [(16, 10, 5), (16, 3, 2)], False, 32, 0.0, 8, 2, 2, 4, 0.0, 64,
        0.0, 0.0, True, 0.0, 12,
    )  # fmt: skip
    return First(model), (torch.randn(1, 400),)


def _wavernn() -> Made:
    model = models.WaveRNN(
        [2, 3], 16, 6, n_res_block=1, n_rnn=16, n_fc=16, n_freq=8, n_hidden=8, n_output=8
    )
    return model, (torch.randn(1, 1, 12), torch.randn(1, 1, 8, 6))


MODELS: dict[str, Factory] = {
    "Conformer": _conformer,
    "ConvTasNet": lambda: (
        models.ConvTasNet(2, 16, 8, 3, 8, 16, 2, 1),
        (torch.randn(1, 1, 160),),
    ),
    "DeepSpeech": lambda: (models.DeepSpeech(8, 16, n_class=10), (torch.randn(1, 1, 7, 8),)),
    "Emformer": _emformer,
    "Wav2Letter": lambda: (models.Wav2Letter(10, "mfcc", 13), (torch.randn(1, 13, 40),)),
    "wav2vec 2.0": _wav2vec2,
    "HuBERT": _hubert,
    "WaveRNN": _wavernn,
}
