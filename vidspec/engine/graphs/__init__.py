"""Passes of few tokens as CUDA graphs: one pass, the choice of its tokens, all passes of a decoder, and drafts."""
