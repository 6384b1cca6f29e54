"""Writes a tiny random Llama for vLLM: a configuration, weights, a tokenizer and a chat template.

What it says is gibberish, but it is real gibberish: byte-level tokens, characters of several bytes split over
tokens, and the same at temperature 0 every time. vLLM can make weights up itself (`--load-format dummy`), but
those are so small that each next token hangs on the last one alone, and the answer is the same whatever KV
cache the engine got. These are large enough that attention matters: a lost or mixed-up cache shows at once.
The tokenizer learns from text that every Python has with it, so the same Python makes the same one.

Runs under the engines' own Python, which has what it imports: `python tiny_model.py FOLDER`.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics
from typing import Any

VOCABULARY = 4000
MAX_LENGTH = 4096
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 256, 512, 4, 4, 2, 64
PAD, BEGIN, END, TURN, TURN_END = "<|pad|>", "<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, BEGIN, END, TURN, TURN_END)  # the first of the vocabulary, and never part of an answer's text
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")  # the last: whole tokens, but text
OTHER_SCRIPTS = (
    "Größe, déjà vu, Ελληνικά, русский язык, 日本語の文章, 한국어, 中文字符, हिन्दी, عربي, 🐋🌊🦄 → ≤ ∞ €\n"
)

# Content may be a string or a list of parts, as OpenAI has it.
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}
{%- elif message.content %}
{%- for part in message.content %}{{ part.text }}{%- endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def training_text() -> Iterator[str]:
    """English prose, Python source, and a little of other scripts."""
    for name in sorted(topics.topics):
        yield topics.topics[name]
    for module in (argparse, asyncio.events, asyncio.base_events, json.decoder):
        yield inspect.getsource(module)
    yield OTHER_SCRIPTS * 50


def write_tokenizer(folder: Path) -> None:
    """Train a byte-level BPE tokenizer of VOCABULARY entries and write it with its chat template."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else the order of equal merges may vary
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKS),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the text gave {tokenizer.get_vocab_size()} tokens instead of {VOCABULARY}")
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_LENGTH,
        "pad_token": PAD,
        "bos_token": BEGIN,
        "eos_token": TURN_END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def write_weights(folder: Path) -> None:
    """Write random weights; the scales keep each layer's input near 1, and attention from being flat."""
    import numpy  # type: ignore[import-not-found]
    from safetensors.numpy import save_file  # type: ignore[import-not-found]

    random = numpy.random.default_rng(0)
    weights: dict[str, Any] = {}

    def matrix(name: str, rows: int, columns: int, gain: float) -> None:
        values = random.standard_normal((rows, columns), dtype=numpy.float32)
        weights[f"{name}.weight"] = values * numpy.float32(gain / columns**0.5)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = numpy.ones(HIDDEN, dtype=numpy.float32)

    matrix("model.embed_tokens", VOCABULARY, HIDDEN, HIDDEN**0.5)
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        norm(f"{layer}.input_layernorm")
        matrix(f"{layer}.self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN, 1.5)
        matrix(f"{layer}.self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN, 1.5)
        matrix(f"{layer}.self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN, 1.0)
        matrix(f"{layer}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, 4.0)
        norm(f"{layer}.post_attention_layernorm")
        matrix(f"{layer}.mlp.gate_proj", INTERMEDIATE, HIDDEN, 1.0)
        matrix(f"{layer}.mlp.up_proj", INTERMEDIATE, HIDDEN, 1.0)
        matrix(f"{layer}.mlp.down_proj", HIDDEN, INTERMEDIATE, 1.0)
    norm("model.norm")
    matrix("lm_head", VOCABULARY, HIDDEN, 3.0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_config(folder: Path) -> None:
    """Write the shape of the model."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_LENGTH,
        "pad_token_id": SPECIAL.index(PAD),
        "bos_token_id": SPECIAL.index(BEGIN),
        "eos_token_id": SPECIAL.index(TURN_END),
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: tiny_model.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    write_weights(folder)
    write_config(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
