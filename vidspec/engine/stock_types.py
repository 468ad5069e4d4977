"""Names for what ``transformers`` leaves untyped: attributes of its classes differ by model."""

from __future__ import annotations

from typing import Any, TypeAlias

#: A stock model, or a module of it.
StockModel: TypeAlias = Any
StockConfig: TypeAlias = Any
StockTokenizer: TypeAlias = Any
