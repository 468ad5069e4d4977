"""A checkpoint of a published width, on which peers are measured."""

from research.sizes import SIZES, Size
from research.studies import wide
from vidspec import Captioner
from vidspec.embedded.samples import shipped


def test_it_loads_and_captions(monkeypatch, tmp_path):
    size = Size(layers=9, hidden=256, heads=2, kv_heads=1, inner=384, vocabulary=9)
    monkeypatch.setitem(SIZES, "tiny", size)
    assert wide.main([str(tmp_path / "made"), "--size", "tiny", "--layers", "2"]) == 0
    overrides = {"models.target": str(tmp_path / "made"), "video.frames": 2, "generate.max_new_tokens": 4}
    with Captioner.from_profile("ar", overrides=overrides) as captioner:
        text = captioner.client.setup.target.model.model.config.text_config
        assert (text.hidden_size, text.intermediate_size, text.num_hidden_layers) == (256, 384, 2)
        caption = captioner.caption(shipped()[0])
    assert caption.models["family"] == "qwen2_5_vl" and caption.counters["emitted"] >= 1
