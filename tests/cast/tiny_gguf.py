"""Tiny models as a Hugging Face directory and as a GGUF file that llama.cpp runs."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.cast.conftest import CHATML

MERGES = [("t", "h"), ("th", "e")]  # GGUF can hold no empty list of merges


def write_tiny_pair(folder: Path, kind: str, *, kv_heads: int = 2) -> tuple[Path, Path]:
    """A llama or qwen2 of two layers, its weights exact in float16: directory and GGUF file."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merged = [a + b for a, b in MERGES]
    vocabulary = {token: n for n, token in enumerate([*special, *alphabet, *merged])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHATML
    torch.manual_seed(1)
    config: Any = {"llama": LlamaConfig, "qwen2": Qwen2Config}[kind](
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.1,
    )
    model: Any = {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM}[kind](config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("proj.bias"):
                parameter.normal_(std=0.1)
    model.half().float()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, write_tiny_gguf(model, tokenizer, folder.with_suffix(".gguf"))


def in_turns(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row 2i of a head is its row i, row 2i + 1 its row i + half: spelt out, row by row."""
    size = len(rows) // heads
    order = [
        head * size + (at // 2) + (size // 2) * (at % 2)
        for head in range(heads)
        for at in range(size)
    ]
    return rows[order]


def write_tiny_gguf(model: Any, tokenizer: Any, path: Path) -> Path:
    """A llama or qwen2 of transformers as GGUF; the tokenizer is one of single bytes."""
    import gguf

    config, name = model.config, model.config.model_type
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == name)
    known = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer: Any = gguf.GGUFWriter(str(path), name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if name == "llama":
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    special = set(tokenizer.all_special_tokens) | {"<|im_start|>"}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)
    for key, parameter in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = parameter.detach().float().numpy()
        if name == "llama" and ".q_proj." in key:
            values = in_turns(values, config.num_attention_heads)
        if name == "llama" and ".k_proj." in key:
            values = in_turns(values, config.num_key_value_heads)
        writer.add_tensor(known.get_name(key, try_suffixes=(".weight", ".bias")), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
