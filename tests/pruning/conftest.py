from types import SimpleNamespace

import pytest

from research.stock_inputs import stock_inputs
from vidspec import video
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine
from vidspec.engine.taps import Taps
from vidspec.models import loading
from vidspec.models.placement import resolve_placement
from vidspec.pruning.base import make_signals


@pytest.fixture(scope="session")
def prefill():
    """Signals of the built-in target's prefill of five frames of a shipped clip: every layer, all attention."""
    model = loading.load_model(str(loading.embedded_folder("embedded", "target")), resolve_placement("cpu", "float32"))
    clip = video.read(shipped()[0], frames=5)
    pixels = model.preprocess(clip)
    prefix = model.prefix(model.encode(pixels), "Describe the video.")
    blocks = range(model.layers)
    taps = Taps(
        rows=prefix.text_rows_after_video,
        visual=prefix.visual.index,
        attention=True,
        attention_at=blocks,
        hidden=(*blocks, model.layers),
    )
    Engine(model).prefill(prefix, 4, taps)
    return SimpleNamespace(
        model=model,
        inputs=stock_inputs(model, pixels, prefix),
        prefix=prefix,
        taps=taps,
        signals=make_signals(prefix, taps),
        depth=model.layers,
    )
