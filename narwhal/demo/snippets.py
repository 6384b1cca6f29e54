"""What a user can paste to reach the demo with a client of their own."""

from __future__ import annotations

import json
import shlex


def curl(url: str, model: str) -> str:
    """One line for a shell."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    return (
        f"curl -N {url}/v1/chat/completions -H 'content-type: application/json' "
        f"-d {shlex.quote(json.dumps(body))}"
    )


def python(url: str, model: str) -> str:
    """Three lines of Python with the `openai` package."""
    return "\n".join(
        (
            "from openai import OpenAI",
            f'stream = OpenAI(base_url="{url}/v1", api_key="unused").chat.completions.create('
            f'model="{model}", messages=[{{"role": "user", "content": "Hello"}}], stream=True)',
            'for event in stream: print(event.choices[0].delta.content or "", end="", flush=True)',
        )
    )
