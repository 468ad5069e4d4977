"""MiniCPM-V 4.6 behind our interface gives what the stock model gives, for the prompt its processor writes."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil as Library
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor

from tests.checkpoints import checkpoint
from tests.checkpoints.minicpmv import adapter, stock
from tests.engine.passing import forward
from tests.model_pairs import Pair, pair_checkpoints
from tests.models import record_preprocess_minicpmv
from tests.models.closeness import assert_close
from tests.models.installed_processor import record_now
from tests.models.parity import PROMPT, ParityCase, check_generate
from tests.models.record_preprocess_minicpmv import CASES, STEP, frames
from tests.models.test_known_pairs import sizes
from tests.ready_clips import read_requests, serve_captions
from vidspec.embedded.samples import shipped
from vidspec.errors import ModelError
from vidspec.models import loading
from vidspec.models.families.minicpmv4_6 import MiniCPMV46
from vidspec.models.frame_rules import SlicedFrames
from vidspec.models.known_pairs import PUBLISHED_RULES
from vidspec.models.placement import resolve_placement
from vidspec.models.preprocess import PixelRules, pool_features
from vidspec.video import Clip
from vidspec.video.resize import fitted

RECORDED = Path(__file__).parent / "fixtures" / "preprocess_minicpmv.npz"
FRAMES = 2
NEW = [300, 41, 317, 77, 77, 260, 123, 338]


class BareMiniCPM(MiniCPMV46):
    """Preprocesses without a model."""

    device, vision_dtype = torch.device("cpu"), torch.float32


def rule_of(settings):
    return MiniCPMV46.frame_rule_of(SimpleNamespace(vision_config=SimpleNamespace(patch_size=14)), settings)


def clip(height=60, width=90):
    """Frames shown whole and in two rows of three slices."""
    shown = np.random.RandomState(0).randint(0, 256, (FRAMES, height, width, 3), dtype=np.uint8)
    return Clip.of(shown, range(FRAMES))


class MiniCPMCase(ParityCase):
    def __init__(self, processor=None, shown=None):
        model = adapter(processor)
        super().__init__(model, stock(), model.preprocess(clip() if shown is None else shown))


@pytest.fixture(scope="module")
def case():
    return MiniCPMCase()


def compare(recorded):
    """Bytes that lie between two are rounded either way, by the number of threads: fewer than one in a hundred."""
    for name, (count, height, width, settings) in CASES.items():
        model = object.__new__(BareMiniCPM)
        model.frame_rule, model.rules = rule_of(settings), PixelRules(448, 448)
        inputs = model.tower_inputs(model.preprocess(Clip.of(frames(name), range(count))))
        assert inputs["target_sizes"].tolist() == recorded[f"{name}_sizes"].tolist()
        views = model.frame_rule.views(height, width)
        assert [list(views.slices)] * count == recorded[f"{name}_grids"].tolist()
        apart = np.abs(inputs["pixel_values"].numpy().reshape(-1)[::STEP] - recorded[name])
        assert apart.max() < 2.01 / 255 and (apart > 1e-5).mean() < 0.01


@pytest.mark.full
def test_frames_are_the_processors():
    compare(np.load(RECORDED))


def test_frames_are_the_installed_processors(tmp_path):
    compare(record_now(record_preprocess_minicpmv.__file__, tmp_path / "now.npz"))


@pytest.mark.parametrize("mode", ["16x", "4x"])
def test_views_of_any_frame_are_the_librarys(mode):
    rule = rule_of({"downsample_mode": mode})
    assert (rule == PUBLISHED_RULES["minicpmv4_6"]) is (mode == "16x")
    for height, width in [*sizes(300), (448, 448), (449, 448), (896, 448), (100, 2200), (1000, 1000)]:
        grid = Library.get_sliced_grid(None, (height, width), 9, 448)
        whole = Library.find_best_resize(None, (height, width), 448, 14, mode, allow_upscale=grid is None)
        found = rule.views(height, width)
        assert (found.whole, list(found.slices)) == (whole, grid or [0, 0])
        if grid is not None:
            library = SimpleNamespace(find_best_resize=lambda **given: Library.find_best_resize(None, **given))
            refined = Library.get_refine_size(library, (height, width), grid, 448, 14, mode, allow_upscale=True)
            assert tuple(size * count for size, count in zip(found.each, grid, strict=True)) == refined


@pytest.mark.parametrize("size", [(1280, 720), (720, 1280), (1920, 803)])
def test_frames_of_so_many_pixels_are_not_sliced(size):
    """As docs/use/own-models.md says."""
    width, height = fitted(*size, 200704)
    assert rule_of({}).views(height, width).slices == (0, 0) != rule_of({}).views(*size[::-1]).slices


#: How frames are shown: whole and in 2 x 3 slices, with four times the tokens, whole only, and a small frame.
SHOWN = {
    "sliced": ({}, (60, 90), [4, *[4] * 6]),
    "fine": ({"downsample_mode": "4x"}, (60, 90), [15, *[16] * 6]),
    "whole": ({"slice_mode": False, "use_image_id": False}, (60, 90), [4]),
    "small": ({}, (20, 40), [3]),
}


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("name", SHOWN)
def test_prompt_and_features_are_the_librarys(name):
    settings, size, counts = SHOWN[name]
    case = MiniCPMCase(settings, clip(*size))
    marks = [*("image_start", "image_end", "slice_start", "slice_end", "image_id_start", "image_id_end")]
    texts = ["<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"]
    library = SimpleNamespace(
        video_token="<|video_pad|>",
        video_slice_mode=settings.get("slice_mode", True),
        **{f"{mark}_token": text for mark, text in zip(marks, texts, strict=True)},
    )
    views, divisor = case.model.frame_rule.views(*size), case.model.frame_rule.merge**2
    targets = case.inputs["target_sizes_videos"]
    made = {
        "target_sizes_videos": targets,
        "num_frames_per_video": [FRAMES],
        "grids_videos": np.array([views.slices] * FRAMES),
    }
    video = MiniCPMV4_6Processor.replace_video_token(library, made, 0, video_token_divisor=divisor)
    if settings.get("use_image_id", True):
        (video,) = MiniCPMV4_6Processor._prepend_local_ids(library, ["<|video_pad|>"], [video], "<|video_pad|>")
    end = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    text = f"<|im_start|>user\n{video}\n{PROMPT}{end}"
    assert case.prefix.token_ids.tolist() == case.model.tokenizer.encode(text)
    assert (targets.prod(-1) // divisor).tolist() == counts * FRAMES
    assert len(case.seen) == case.model.visual_tokens(FRAMES, *size) == sum(counts) * FRAMES
    with torch.inference_mode():
        inputs = {key: case.inputs[key] for key in ("pixel_values_videos", "target_sizes_videos", "downsample_mode")}
        assert_close(case.seen.features, torch.cat(case.stock.get_video_features(**inputs).pooler_output))


def test_places_are_those_in_the_frame(case):
    """The rows of the slices, here two rows of three with four tokens each, come below those of the whole."""
    seen = case.seen
    assert seen.grid == (FRAMES, 6, 6) and seen.views == ((2, 2), (4, 6)) and seen.slices == (2, 3)
    places = list(zip(seen.row.tolist(), seen.column.tolist(), strict=True))[:28]
    assert places[:8] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert places[8] == (2, 2) and places[16] == (4, 0) and len({*places}) == 28
    assert seen.frame.tolist() == [0] * 28 + [1] * 28


@torch.inference_mode()
def test_pooled_features_are_the_projectors(case):
    """Of sixteen patches a view's tower output has; each average of four patches pads to one token."""
    pooled = case.model.encode(case.pixels, pooled=True)
    inputs = {key.removesuffix("_videos"): value for key, value in case.inputs.items()}
    found = case.stock.get_image_features(inputs["pixel_values"], inputs["target_sizes"])
    states = found.last_hidden_state.view(FRAMES * 7, 4, 4, -1)
    merged = case.stock.model.merger(pool_features(states).flatten(0, 2)[None], torch.full((FRAMES * 7, 2), 2))
    assert_close(pooled.features, torch.cat(merged))
    assert pooled.grid == (FRAMES, 3, 3) and pooled.views == ((1, 1), (2, 3))
    assert len(case.model.prefix(pooled, PROMPT).visual) == 7 * FRAMES


def test_a_chunk_is_some_frames(case, monkeypatch):
    monkeypatch.setattr("vidspec.models.video_language_model.tower_budget", lambda device: 1)
    assert_close(case.model.encode(case.pixels).features, case.seen.features)


def test_decoding(case):
    """Windows, and again from after the first of five rows."""
    assert case.model.decoder.name == "stock" and case.model.decoder.axes == 1
    state = case.prefill()
    assert_close(state.logits, case.expected()[-1])
    assert_close(forward(case.engine, state, NEW).logits, case.expected(NEW)[-len(NEW) :])
    state = case.prefill()
    forward(case.engine, state, NEW[:5])
    state.span.rollback(case.prefix.length + 1)
    assert_close(forward(case.engine, state, NEW[5:]).logits, case.expected([NEW[0], *NEW[5:]])[-3:])


def test_greedy_decoding_is_generate(case):
    check_generate(case)


def test_several_frames_in_one_picture_are_refused():
    with pytest.raises(ModelError, match="puts several frames in one picture"):
        adapter({"stack_frames": 5})


@pytest.mark.full
def test_checkpoints_load(case):
    model = loading.load_model(str(checkpoint("minicpmv4_6")), resolve_placement("cpu", "float32"))
    assert isinstance(model.frame_rule, SlicedFrames) and model.decoder.cached is not None
    assert_close(model.encode(model.preprocess(clip())).features, case.seen.features)


@pytest.mark.full
@pytest.mark.usefixtures("clips_read_once")
def test_profiles_are_exact():
    """Chains of a draft, of one that is shown less, and of the target's own quantised copy; four clips at once."""
    pair = Pair(*pair_checkpoints("minicpmv4_6"), tokens=12, **{"video.frames": 3})
    clips = [str(path) for path in shipped()]
    again = {"draft.prefill": "again"}
    for number, (name, options) in enumerate(
        {"vanilla-sd": {}, "specvlm-chain": {}, "tabed-mtcp": {}, "self-int8": again, "parallelvlm": {}}.items()
    ):
        settings = {**options, **({"schedule.startup": "window"} if name == "parallelvlm" else {})}
        path = clips[number % len(clips)]
        assert pair.captioner(name, settings).caption(path).token_ids == pair.plain(path), name
    four = pair.captioner("specvlm-chain")
    captions = serve_captions(four, read_requests(four, clips), batch=4)
    assert {path: caption.token_ids for path, caption in captions.items()} == {path: pair.plain(path) for path in clips}
    pair.close()
