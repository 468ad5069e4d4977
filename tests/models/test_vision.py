"""Vision towers in chunks and with equal windows as a batch give what the stock towers give in one go."""

import weakref
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from research.stock_inputs import stock_pixels
from tests.checkpoints import llava, llava_onevision, qwen
from tests.checkpoints.qwen import QWEN2, QWEN3, QWEN25
from tests.model_pairs import ADAPTERS
from tests.ready_clips import serve_captions
from tests.tiers import full_but
from vidspec.models import video_language_model, vision
from vidspec.models.request import CaptionRequest
from vidspec.models.vision import token_bytes, window_attention
from vidspec.video import Clip

STEPS = 7
#: Visual tokens of a step, in windows of 3 x 3: equal ones, unequal ones at one border, at both, at both of one window.
GRIDS = {"equal": (3, 6), "border": (3, 5), "borders": (7, 8), "corner": (4, 7), "one": (1, 1)}


class TowerCase:
    """A model behind our interface, the same model untouched, and a clip of so many frames (temporal steps)."""

    def __init__(self, name: str) -> None:
        self.qwen = name in (QWEN2, QWEN25, QWEN3)
        self.onevision = name == "llava_onevision"
        self.every_block = not self.qwen
        if self.qwen:
            made, kind = qwen, qwen.QwenKind(name)
        elif self.onevision:
            made, kind = llava_onevision, llava_onevision.TIED
        else:
            made, kind = llava, llava.LlavaKind(family=name)
        self.model, self.stock = made.adapter(kind), made.stock(kind)
        self.config = self.model.model.config.vision_config
        self.tower = self.model.tower if self.qwen else self.model.model.model.vision_tower

    def pixels(self, steps, grid=GRIDS["borders"]):
        if self.qwen:
            return qwen.pixels(self.model, 2 * steps, *grid)
        if self.onevision:
            return llava_onevision.pixels(steps)
        return self.model.preprocess(llava.clip(steps, 60, 90))

    def bytes_of_a_frame(self, pixels):
        """Rows of the tower's hidden states of a frame by their bytes."""
        if self.qwen:
            rows = pixels.grid[1] * pixels.grid[2]
        else:
            images = pixels.values[0].numel() // (3 * self.config.image_size**2)
            rows = images * ((self.config.image_size // self.config.patch_size) ** 2 + (not self.onevision))
        normalised = 0 if pixels.rules is None else 8 * pixels.stored.numel() // pixels.grid[0]
        return rows * token_bytes(self.config, every_block=self.every_block) + normalised

    @torch.inference_mode()
    def expected(self, pixels):
        """Each level of features as the stock model has it, the whole clip at once."""
        if self.qwen:
            found = self.stock.get_video_features(pixels.values, torch.tensor([pixels.grid]))
            return [found.pooler_output[0], *(level[0] for level in getattr(found, "deepstack_features", ()))]
        if self.onevision:
            return [self.stock.get_video_features(pixels.values[None]).pooler_output[0]]
        return [torch.cat(list(self.stock.get_image_features(**stock_pixels(self.model, pixels)).pooler_output))]


FAMILIES = [QWEN2, QWEN25, QWEN3, "llava", "llava_next", "llava_onevision"]


@pytest.fixture(scope="module", params=FAMILIES)
def case(request):
    return TowerCase(request.param)


@pytest.fixture(scope="module")
def qwen25():
    return TowerCase(QWEN25)


def assert_equal(seen, levels):
    for ours, theirs in zip([seen.features, *seen.deepstack], levels, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize("fitting", [0.5, 2, 3.5])
def test_chunks_give_the_stock_features(case, fitting, monkeypatch):
    pixels = case.pixels(STEPS)
    monkeypatch.setattr(vision, "BUDGET", int(fitting * case.bytes_of_a_frame(pixels)))
    seen = case.model.encode(pixels)
    assert_equal(seen, case.expected(pixels))
    assert seen.frame.max() == STEPS - 1 and seen.seconds == pixels.seconds and seen.grid[0] == STEPS


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", [QWEN25, QWEN3])
def test_windows_in_batches_give_the_stock_features(name, grid):
    case = TowerCase(name)
    pixels = case.pixels(2, GRIDS[grid])
    assert_equal(case.model.encode(pixels), case.expected(pixels))


def test_pooled_features_of_chunks(case, monkeypatch):
    """In one go they are compared with a slow reference elsewhere."""
    pixels = case.pixels(5)
    whole = case.model.encode(pixels, pooled=True)
    monkeypatch.setattr(vision, "BUDGET", 2 * case.bytes_of_a_frame(pixels))
    cut = case.model.encode(pixels, pooled=True)
    assert_equal(cut, [whole.features, *whole.deepstack])
    assert cut.grid == whole.grid
    for name in ("frame", "row", "column"):
        assert torch.equal(getattr(cut, name), getattr(whole, name))


@pytest.fixture
def calls(monkeypatch):
    """The batch of each call of attention."""
    seen, kernel = [], F.scaled_dot_product_attention

    def counted(query, *rest, **options):
        seen.append(len(query))
        return kernel(query, *rest, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    return seen


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("grid, lengths, windows", [("equal", 1, 2), ("border", 2, 2), ("borders", 4, 9)])
def test_one_call_for_windows_of_a_length(qwen25, calls, grid, lengths, windows, steps):
    """Two blocks look at windows, two at whole steps; before, each window of each block was a call."""
    pixels = qwen25.pixels(steps, GRIDS[grid])
    qwen25.expected(pixels)
    assert len(calls) == 2 * steps * windows + 2 * steps
    calls.clear()
    qwen25.model.encode(pixels)
    assert len(calls) == 2 * lengths + 2 and sum(calls) == 2 * steps * windows + 2 * steps


def test_one_call_for_the_frames_of_a_clip(calls):
    case = TowerCase(QWEN3)
    case.model.encode(case.pixels(4))
    assert calls == [4] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[4, 4, 4], [6, 2, 6, 1, 2], [5]])
def test_window_attention(lengths, dtype):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, sum(lengths), 8, generator=generator).to(dtype) for _ in range(3))
    begins = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    given, weights = window_attention(torch.nn.Module(), query, key, value, None, 0.3, begins)
    assert weights is None and given.shape == (1, sum(lengths), 2, 8)
    for start, end in pairwise(begins.tolist()):
        window = [tensor[:, :, start:end].float() for tensor in (query, key, value)]
        expected = F.scaled_dot_product_attention(*window, scale=0.3).transpose(1, 2)
        close = 1e-6 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(given[:, start:end].float(), expected, rtol=0, atol=close)


@pytest.mark.sample(quick=8)
@pytest.mark.parametrize("fitting, sizes", [(0.5, [1] * STEPS), (2, [1, 2, 2, 2]), (6.9, [3, 4]), (7, [7])])
def test_no_chunk_is_over_the_budget(case, fitting, sizes, monkeypatch):
    pixels = case.pixels(STEPS)
    monkeypatch.setattr(vision, "BUDGET", int(fitting * case.bytes_of_a_frame(pixels)))
    rows = []
    handle = case.tower.register_forward_pre_hook(lambda _module, args: rows.append(len(args[0])))
    case.model.encode(pixels)
    handle.remove()
    each = sum(rows) // STEPS
    assert sorted(count // each for count in rows) == sizes and sum(rows) == each * STEPS


class Memory(TorchDispatchMode):
    """The most bytes that tensors made in it took at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.most = {}, 0

    def __torch_dispatch__(self, function, types, args=(), options=None):
        made = function(*args, **(options or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.held:
                    self.held[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.held.pop, storage._cdata)
        self.most = max(self.most, sum(self.held.values()))
        return made


@pytest.mark.sample(quick=2)
def test_memory_stays_in_the_budget(case, monkeypatch):
    """Beside the pixels, the features and their copy in one piece."""

    def most(steps):
        pixels = case.pixels(steps)
        held = {tensor.untyped_storage()._cdata: 0 for tensor in (pixels.stored, *case.model.model.parameters())}
        with Memory() as memory:
            memory.held |= held
            seen = case.model.encode(pixels)
        return memory.most - 2 * sum(level.numel() * level.element_size() for level in (seen.features, *seen.deepstack))

    budget = 3 * case.bytes_of_a_frame(case.pixels(3))
    monkeypatch.setattr(vision, "BUDGET", budget)
    assert most(15) <= budget
    monkeypatch.setattr(vision, "BUDGET", 1 << 40)
    assert most(15) > budget


def test_the_budget_of_a_tower_follows_the_free_memory_of_a_gpu(monkeypatch):
    monkeypatch.setattr(vision, "free_memory", lambda device: 1 << 30)
    assert vision.tower_budget(torch.device("cpu")) == vision.BUDGET
    assert vision.tower_budget(torch.device("cuda")) == 1 << 28
    monkeypatch.setattr(vision, "free_memory", lambda device: 1 << 40)
    assert vision.tower_budget(torch.device("cuda")) == vision.BUDGET


#: Families whose small models here have products of many rows for each frame.
SAME_BITS = ("llava_onevision", QWEN25, "minicpmv4_6")


def answered_together(model, clips, *, pooled=False):
    """Vision outputs of clips whose requests wait together, and the number of clips in each pass."""
    steps = [model.encode_steps(model.preprocess(clip), pooled=pooled) for clip in clips]
    waiting, outputs, passes = {number: next(one) for number, one in enumerate(steps)}, {}, []
    while waiting:
        first, *rest = waiting.values()
        others = first.partners([first, *rest])
        first.run_with(others)
        passes.append(1 + len(others))
        for number, request in list(waiting.items()):
            if request is first or request in others:
                try:
                    waiting[number] = steps[number].send(request.answer)
                except StopIteration as end:
                    outputs[number] = end.value
                    del waiting[number]
    return [outputs[number] for number in range(len(clips))], passes


def noise(seed, frames, height=60, width=90):
    shown = np.random.default_rng(seed).integers(0, 255, (frames, height, width, 3), dtype=np.uint8)
    return Clip.of(shown, range(frames))


@pytest.mark.sample(full=16)
@pytest.mark.parametrize("family", full_but([*SAME_BITS], sorted(ADAPTERS)))
@pytest.mark.parametrize("pooled", full_but([False], [False, True]))
def test_frames_of_several_clips_share_a_pass(family, pooled, monkeypatch):
    """One pass instead of three, with the same bits where those of a product do not depend on its number of rows."""
    monkeypatch.setattr(video_language_model, "shares_passes", lambda device: True)
    model = ADAPTERS[family]()
    # Others choose the size of frames by their number.
    clips = [noise(seed, count) for seed, count in enumerate((4, 2, 6) if family in SAME_BITS else (4, 4, 4))]
    together, passes = answered_together(model, clips, pooled=pooled)
    assert passes == [3]
    for clip, seen in zip(clips, together, strict=True):
        alone = model.encode(model.preprocess(clip), pooled=pooled)
        for level, expected in zip((seen.features, *seen.deepstack), (alone.features, *alone.deepstack), strict=True):
            assert torch.equal(level, expected) or family not in SAME_BITS
            torch.testing.assert_close(level, expected, rtol=1e-5, atol=1e-5)
        assert (seen.grid, seen.seconds, seen.views) == (alone.grid, alone.seconds, alone.views)


def test_passes_of_several_clips_stay_within_the_budget(monkeypatch):
    """The frames of two clips fit; those of other sizes do not join; on a CPU none do."""
    case = TowerCase("llava_onevision")
    pixels = case.model.preprocess(noise(0, 3))
    monkeypatch.setattr(video_language_model, "shares_passes", lambda device: True)
    monkeypatch.setattr(video_language_model, "tower_budget", lambda device: 7 * case.bytes_of_a_frame(pixels))
    clips = [noise(seed, 3) for seed in range(5)]
    assert answered_together(case.model, clips)[1] == [2, 2, 1]
    assert answered_together(ADAPTERS[QWEN25](), [clips[0], noise(0, 3, 90, 60), clips[1]])[1] == [2, 1]
    monkeypatch.undo()
    assert answered_together(case.model, clips[:2])[1] == [1, 1]


def test_clips_in_flight_share_passes_of_the_tower(small_captioner, monkeypatch):
    """Two passes, one of each model, for four clips whose pixels are there; a pass that fails is made for each clip."""
    inputs, client = small_captioner.client.inputs, small_captioner.client
    clips = {str(seed): noise(seed, 4) for seed in range(4)}
    expected = {key: small_captioner.caption(key, clip=clip).token_ids for key, clip in clips.items()}
    family, passes, most = type(client.setup.target.model), [], [4]
    encode = family._chunk

    def counted(model, pixels, pooled):
        passes.append(pixels.grid[0] // 4)
        if passes[-1] > most[0]:
            raise RuntimeError("no room")
        return encode(model, pixels, pooled)

    def ready(clip):
        return {model: model.preprocess(clip) for model in inputs.vision.models}

    monkeypatch.setattr(family, "_chunk", counted)
    monkeypatch.setattr(video_language_model, "shares_passes", lambda device: True)
    monkeypatch.setattr(inputs.vision, "take", ready)
    for limit in (4, 1):
        passes.clear()
        most[0] = limit
        requests = [CaptionRequest(key, clip, key=key) for key, clip in clips.items()]
        texts = serve_captions(small_captioner, requests, batch=4)
        assert {key: one.token_ids for key, one in texts.items()} == expected
        assert passes == [4, 4] if limit == 4 else (passes[0], passes.count(1)) == (4, 8)
