"""How each kind of engine is spoken to: one file a dialect."""

from narwhal.config import Dialect as Name
from narwhal.engines.dialects.base import Dialect, HandoffError, Pieces
from narwhal.engines.dialects.openai import OpenAI
from narwhal.engines.dialects.vllm import Vllm

DIALECTS: dict[Name, Dialect] = {Name.VLLM: Vllm(), Name.OPENAI: OpenAI()}

__all__ = ["DIALECTS", "Dialect", "HandoffError", "Pieces"]
