"""Record what the authors' code of video-SALMONN 2+ gives for a small checkpoint, for ``test_video_salmonn.py``.

    python -c "from tests.checkpoints import *; save_checkpoint(Path('CHECKPOINT'), 'video_salmonn2_plus')"
    python tests/models/record_video_salmonn.py CHECKPOINT video-SALMONN-2/video_SALMONN2_plus

The second line runs in an environment of its own, with the ``transformers`` that the authors pin (4.51.3). Packages
that this part of their code only imports are replaced by empty ones.
"""

import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor

OUT = Path(__file__).parent / "fixtures" / "video_salmonn.json"
ROWS, COLUMNS, PATCH_VALUES = 3, 5, 3 * 2 * 14 * 14
#: Steps, seconds between them, and seconds of sound.
CASES = ((3, 0.7, 0), (4, 2.6, 0), (1, 1.0, 0.4), (3, 0.7, 3.1), (5, 1.37, 29.9), (4, 11.3, 47.5))
NEW = 20


def noise(seconds: float):
    return (0.1 * np.random.RandomState(0).standard_normal(int(seconds * 16000))).astype(np.float32)


@torch.inference_mode()
def record(checkpoint: Path) -> list[dict]:
    from qwenvl.data.dataset import LazySupervisedDataset, preprocess_qwen_2_visual
    from qwenvl.model.modeling_qwen2_5_vl import video_SALMONN2_plus

    model = video_SALMONN2_plus.from_pretrained(checkpoint, attn_implementation="eager").float().eval()
    model.load_state_dict(load_file(checkpoint / "model.safetensors"), strict=False)  # not rounded to bfloat16
    config = model.config
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(checkpoint / "tokenizer.json"))
    data = object.__new__(LazySupervisedDataset)
    data.data_args = MagicMock(audio_processor=WhisperFeatureExtractor(feature_size=config.audio_config.num_mel_bins))
    found = []
    for steps, every, heard in CASES:
        grid = torch.tensor([[steps, 2 * ROWS, 2 * COLUMNS]])
        patches = torch.randn(int(grid.prod()), PATCH_VALUES, generator=torch.Generator().manual_seed(0))
        sys.modules["qwenvl.data.dataset"].AudioDecoder = lambda *_, **__: MagicMock(
            **{"get_all_samples.return_value.data.numpy.return_value": noise(heard)[None]}  # noqa: B023
        )
        audio, lengths = data.process_audio("") if heard else (None, None)
        conversation = [
            {"from": "human", "value": "<video>\nDescribe the video."},
            {"from": "gpt", "value": ""},
        ]
        prompt = preprocess_qwen_2_visual([conversation], tokenizer, None, grid, lengths, 2, [every] * 3)
        # They cut three tokens into the answer, which their tokenizer has for its opening.
        opening = len(tokenizer.encode("<|im_start|>assistant\n")) - 3
        ids = prompt["input_ids"][:, : int((prompt["labels"] == -100).sum()) + opening]
        positions, _ = model.get_rope_index(ids, None, grid, lengths, [every])
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "video_grid_thw": grid}
        given |= {"pixel_values_videos": patches} | ({"audio_feature": torch.cat(audio)} if heard else {})
        padding = list(range(len(tokenizer), config.vocab_size))
        options = {"max_new_tokens": NEW, "do_sample": False, "suppress_tokens": padding}
        text = model.generate(**given, **options, second_per_grid_ts=[every], audio_lengths=lengths)
        found.append(
            {
                "steps": steps,
                "every": every,
                "heard": heard,
                "prompt": ids[0].tolist(),
                "positions": positions[:, 0].tolist(),
                "text": text[0, ids.shape[1] :].tolist(),
            }
        )
    return found


if __name__ == "__main__":
    for name in (
        *("torchcodec", "torchcodec.decoders", "decord", "liger_kernel", "liger_kernel.transformers"),
        *("liger_kernel.transformers.model", "liger_kernel.transformers.model.loss_utils"),
    ):
        sys.modules[name] = MagicMock()
    torch.cuda.current_device = lambda: 1  # it prints shapes on the first GPU
    sys.path.insert(0, sys.argv[2])
    OUT.write_text(json.dumps(record(Path(sys.argv[1])), separators=(",", ":")).replace("},{", "},\n{") + "\n")
