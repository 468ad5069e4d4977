"""Captions over HTTP: OpenAI's chat API in front of a captioner. Needs the extra ``serve``."""
