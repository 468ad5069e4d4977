"""Pictures that decoders deliver, seen from outside."""

from vidspec.video import decode_av


def record_decoded_pts(monkeypatch) -> list[int]:
    """Timestamps of all pictures that leave decoders from now on."""
    seen, decode_all = [], decode_av.decode_all

    def decode_and_note(*args, **options):
        for picture in decode_all(*args, **options):
            seen.append(picture.pts)
            yield picture

    monkeypatch.setattr(decode_av, "decode_all", decode_and_note)
    return seen
