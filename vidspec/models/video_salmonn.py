"""Stock model of video-SALMONN 2+: Qwen2.5-VL with Whisper's encoder and a Q-Former over windows of its output.

The parts are those of ``transformers``. Configs and names of weights are those of the authors' repository
(bytedance/video-SALMONN-2), whose code is not run.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from transformers import (
    AutoModelForImageTextToText,
    Blip2QFormerConfig,
    Blip2QFormerModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    WhisperConfig,
)
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from vidspec.errors import ModelError
from vidspec.models.base import StockConfig

ARCHITECTURE = "video_SALMONN2_plus"
#: Audio tokens of 30 seconds, and the encoder's rows that they stand for.
PART_TOKENS, PART_ROWS = 60, 1500
#: Defaults of ``audio_config`` and of its ``qformer_config``, those of the authors' classes.
AUDIO: Mapping[str, object] = {
    "num_mel_bins": 128,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "activation_function": "gelu",
    "d_model": 1280,
    "max_source_positions": PART_ROWS,
}
QFORMER: Mapping[str, object] = {
    "hidden_size": 3072,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "intermediate_size": 12288,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
#: Settings that only one value of is read: others have no published checkpoint.
FIXED: Mapping[str, object] = {"second_per_window": 0.5, "second_stride": 0.5, "max_source_positions": PART_ROWS}
QFORMER_FIXED: Mapping[str, object] = {
    "query_length": 1,
    "add_cross_attention": True,
    "position_embedding_type": "absolute",
}


class VideoSalmonnConfig(Qwen2_5_VLConfig):
    """Config of Qwen2.5-VL with ``audio_config``, which keeps the checkpoint's form."""

    model_type = "video_salmonn2_plus"
    audio_config: dict[str, object] | None = None
    audio_token_id: int = 151665


class SalmonnAudioEncoder(WhisperEncoder):
    """Whisper's encoder, then one Q-Former token for each half second, projected to the language model."""

    _no_split_modules = ["SalmonnAudioEncoder"]  # noqa: RUF012 - as in transformers

    def __init__(self, settings: StockConfig, hidden_size: int) -> None:
        super().__init__(WhisperConfig(**_chosen(AUDIO, settings)))
        given = settings.get("qformer_config") or {}
        qformer = Blip2QFormerConfig(
            **_chosen(QFORMER, given),
            encoder_hidden_size=given.get("encoder_width", 1280),
            cross_attention_frequency=given.get("cross_attention_freq", 1),
        )
        self.q_tokens = nn.Parameter(torch.zeros(1, 1, qformer.hidden_size))
        self.qformer = Blip2QFormerModel(qformer)
        self.audio_proj = nn.Linear(qformer.hidden_size, hidden_size)

    def forward(self, input_features: torch.Tensor, **_: object) -> torch.Tensor:
        """Return the tokens (60 B, hidden) of log-mel spectra (B, bins, 3000), 30 seconds each."""
        states = super().forward(input_features).last_hidden_state
        windows = states.reshape(-1, PART_ROWS // PART_TOKENS, states.shape[-1])
        queries = self.q_tokens.expand(len(windows), -1, -1)
        found = self.qformer(query_embeds=queries, encoder_hidden_states=windows).last_hidden_state
        return self.audio_proj(found)[:, 0]  # type: ignore[no-any-return]


class VideoSalmonn(Qwen2_5_VLForConditionalGeneration):
    """Qwen2.5-VL with an audio encoder; its ``forward`` takes no sound."""

    config_class = VideoSalmonnConfig

    def __init__(self, config: StockConfig) -> None:
        super().__init__(config)
        self.audio = SalmonnAudioEncoder(config.audio_config or {}, config.text_config.hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]


def salmonn_config(name: str, config: StockConfig) -> StockConfig:
    """Return the config of a Qwen2.5-VL with sound.

    Raises:
        ModelError: it is of another architecture, or has settings that are not read; names them.
    """
    if ARCHITECTURE not in (config.architectures or ()):
        raise ModelError(
            f"{name}: a Qwen2.5-VL with an audio_config, of architecture {', '.join(config.architectures or ['none'])}",
            hint=f"{ARCHITECTURE} is the only one that is read",
            kind="family",
        )
    audio = getattr(config, "audio_config", None) or {}
    for part, given, fixed in (
        ("audio_config", audio, FIXED),
        ("audio_config.qformer_config", audio.get("qformer_config") or {}, QFORMER_FIXED),
    ):
        for key, value in fixed.items():
            if given.get(key, value) != value:
                raise ModelError(
                    f"{name}: {part}.{key} {given[key]} is not supported; supported: {value}", kind="family"
                )
    return VideoSalmonnConfig.from_dict({**config.to_dict(), "model_type": VideoSalmonnConfig.model_type})


def _chosen(defaults: Mapping[str, object], given: Mapping[str, object]) -> StockConfig:
    return {key: given.get(key, value) for key, value in defaults.items()}


AutoModelForImageTextToText.register(VideoSalmonnConfig, VideoSalmonn)
register_checkpoint_conversion_mapping(
    VideoSalmonn.__name__,
    [
        *(get_checkpoint_conversion_mapping("Qwen2_5_VLForConditionalGeneration") or []),
        WeightRenaming(r"^audio\.qformer\.bert\.embeddings\.LayerNorm", "audio.qformer.layernorm"),
        WeightRenaming(r"attention\.self\.", "attention.attention."),
        WeightRenaming(r"^audio\.qformer\.bert\.encoder", "audio.qformer.encoder"),
    ],
)
