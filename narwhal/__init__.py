"""Narwhal: a router for LLM engines that split each request into prefill and decode."""

__version__ = "0.1.0"
