"""LLaVA-NeXT: each frame is an image, encoded whole and in tiles, with a newline after each row of the tiles."""

from __future__ import annotations

import torch

from vidspec.engine.requests import Steps
from vidspec.models.base import Pixels, StockConfig, VisionOutput, families
from vidspec.models.families.llava import VICUNA, Llava
from vidspec.models.frame_rules import FrameRule, TiledFrames, best_resolution, unpadded_cells
from vidspec.models.preprocess import ProcessorConfig, cut_tiles, seconds_of
from vidspec.video.base import Clip

MISTRAL = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ '<<SYS>>\n' + message['content'][0]['text'] + '\n<</SYS>>\n\n' }}{% else %}{{ '[INST] ' }}"
    "{% for content in message['content'] if content['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] if content['type'] == 'text' %}{{ content['text'] }}{% endfor %}"
    "{{ ' [/INST]' }}{% endif %}{% endfor %}"
)


@families.register("llava_next")
class LlavaNext(Llava):
    """A ``LlavaNextForConditionalGeneration``; checkpoints without a template use Mistral's if their language
    model is Mistral, Vicuna's otherwise."""

    family = "llava_next"

    def default_template(self) -> str:
        return MISTRAL if self.model.config.text_config.model_type == "mistral" else VICUNA

    def set_up(self, processor: ProcessorConfig) -> None:
        super().set_up(processor)
        self.resolutions: list[list[int]] = self.model.config.image_grid_pinpoints

    @classmethod
    def frame_rule_of(cls, config: StockConfig, processor: ProcessorConfig) -> FrameRule:
        edge = config.vision_config.image_size
        return TiledFrames(edge // config.vision_config.patch_size, edge, config.image_grid_pinpoints)

    def preprocess(self, clip: Clip) -> Pixels:
        """Return frames and tiles (T, 1 + tiles, 3, S, S); the grid has the frames' height and width in pixels."""
        shown = cut_tiles(clip.frames, self.rules, self.resolutions, self.device)
        return Pixels(shown, (len(shown), *clip.frames.shape[1:3]), seconds_of(clip), rules=self.rules.pixels)

    def tower_inputs(self, pixels: Pixels) -> dict[str, object]:
        frames, height, width = pixels.grid
        sizes = torch.tensor([[height, width]], device=self.device).repeat(frames, 1)
        return {**super().tower_inputs(pixels), "image_sizes": sizes}

    @torch.inference_mode()
    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        """Return per frame side ** 2 tokens of the whole, then the tiles' without padding, a newline after each row.

        In the frame's raster of visual tokens, the tiles' rows come below those of the whole.
        """
        features, side = yield from self.projected(pixels, pooled)
        frames, height, width = pixels.grid
        best = best_resolution((height, width), self.resolutions)
        tall, wide = (pixel // self.model.config.vision_config.image_size for pixel in best)
        features = features.unflatten(0, (frames, 1 + tall * wide))
        extra = features.shape[2] - side**2
        tiles = features[:, 1:, extra:].unflatten(1, (tall, wide)).unflatten(3, (side, side))
        tiles = tiles.transpose(2, 3).flatten(1, 2).flatten(2, 3)  # (T, rows, columns, hidden)
        rows, columns = unpadded_cells((height, width), (tall * side, wide * side))
        tiles = tiles[:, rows, columns]
        newline = self.model.model.image_newline.to(tiles).expand(frames, tiles.shape[1], 1, -1)
        tiles = torch.cat([tiles, newline], dim=2)
        below = _raster(tiles.shape[1], tiles.shape[2], 0, 1)
        below[0, below[0] >= 0] += side
        place = torch.cat([_raster(side, side, extra, 0), below], dim=1).to(features.device)
        packed = torch.cat([features[:, 0], tiles.flatten(1, 2)], dim=1)
        return VisionOutput(
            features=packed.flatten(0, 1),
            frame=torch.arange(frames, device=packed.device).repeat_interleave(packed.shape[1]),
            row=place[0].repeat(frames),
            column=place[1].repeat(frames),
            grid=(frames, side + tiles.shape[1], max(side, tiles.shape[2] - 1)),
            seconds=pixels.seconds,
            views=((side, side), (tiles.shape[1], tiles.shape[2] - 1)),
        )


def _raster(rows: int, columns: int, before: int, after: int) -> torch.Tensor:
    """Return row and column (2, before + rows * columns) of tokens in raster order; -1 for those ``before`` the raster
    and for the last ``after`` of each row."""
    cell = torch.arange(rows * columns)
    place = torch.stack([cell // columns, cell % columns])
    place = place.masked_fill(place[1] >= columns - after, -1)
    return torch.cat([place.new_full((2, before), -1), place], dim=1)
