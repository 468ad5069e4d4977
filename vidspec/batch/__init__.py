"""Many clips: running them, writing their records, comparing with plain decoding. No torch, no terminal."""
