"""Whisper tiny (Radford et al. 2022) as in transformers: the encoder, and one step of the decoder.

Two departures from a plain export, both so that the tensors have a usable range: the causal mask adds -100
instead of the smallest float, and a prompt of one token has no mask at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from graphs.graph import GraphError
from graphs.zoo import blocks, sequences
from graphs.zoo.builder import Value, scaled

if TYPE_CHECKING:
    from graphs.zoo.builder import Net

WIDTH, HEADS, HIDDEN, DEPTH = 384, 6, 1536, 4
MELS, VOCABULARY, LONGEST_AUDIO, LONGEST_TEXT = 80, 51865, 1500, 448
MASKED = -100.0
EMBEDDING_STD = 0.1
"""The token table also makes the logits: 384 products with a normalised state have a spread of 2."""


def whisper_tiny_encoder(net: Net, *, batch: int = 1, seconds: int = 30) -> dict[str, Value]:
    """Add the encoder: log-mel (batch, 80, 100 * seconds) to states (batch, 50 * seconds, 384); 1 to 30 seconds.

    The published model takes 30 seconds; with less, the first rows of the position table are stored.
    """
    positions = _positions(seconds)
    mel = net.input("input_features", (batch, MELS, 2 * positions))
    x = blocks.conv(net, mel, WIDTH, 3, name="conv1", batch_norm=False, act="gelu")
    x = blocks.conv(net, x, WIDTH, 3, name="conv2", stride=2, batch_norm=False, act="gelu")
    x = blocks.transpose(net, x, (0, 2, 1))
    table = net.parameter("embed_positions.weight", _sinusoids(positions), count=LONGEST_AUDIO * WIDTH)
    x = scaled(net.node("Add", [x, table], x.shape), mean=x.mean, power=x.power + 0.5)
    for index in range(DEPTH):
        with net.scope(f"layers.{index}"):
            x = _self_attention(net, x, None, None)[0]
            x = _feed_forward(net, x)
    return {"last_hidden_state": sequences.layer_norm(net, x, name="layer_norm")}


def whisper_tiny_decoder(
    net: Net, *, batch: int = 1, cache: bool = True, past: int = 64, tokens: int = 4, seconds: int = 30
) -> dict[str, Value]:
    """Add one step of the decoder.

    With `cache`: one token, the keys and values of `past` earlier ones and those of the audio (batch, 6, length,
    64) per layer; without: a prompt of `tokens` tokens and the encoder's states. Both give logits (batch, tokens,
    51865) and the keys and values of the text so far; without cache those of the audio too.
    """
    length, start = (1, past) if cache else (tokens, 0)
    if not 1 <= length + start <= LONGEST_TEXT or (cache and not past):
        raise GraphError(f"whisper_tiny_decoder takes 1 to {LONGEST_TEXT} tokens with the cached ones")
    ids = net.input("input_ids", (batch, length), TensorProto.INT64)
    audio = None if cache else net.input("encoder_hidden_states", (batch, _positions(seconds), WIDTH))
    embedding = net.parameter("embed_tokens.weight", net.normal((VOCABULARY, WIDTH), EMBEDDING_STD))
    x = net.node("Gather", [embedding, ids], (batch, length, WIDTH), axis=0)
    x = _add_positions(net, x, start, length)
    outputs: dict[str, Value] = {}
    for index in range(DEPTH):
        caches = _cache_inputs(net, index, batch, past, _positions(seconds)) if cache else (None, None)
        with net.scope(f"layers.{index}"):
            x, presents = _decoder_layer(net, x, audio, *caches)
        outputs |= {f"present.{index}.{name}": value for name, value in presents.items()}
    x = sequences.layer_norm(net, x, name="layer_norm")
    return {"logits": _tied_logits(net, x, embedding)} | outputs


def _positions(seconds: int) -> int:
    if not 1 <= seconds <= 30:
        raise GraphError(f"Whisper hears 1 to 30 seconds of audio, not {seconds}")
    return 50 * seconds


def _sinusoids(length: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return the published position table, the only weights here that are not random."""
    scales = np.exp(-np.log(10000) / (WIDTH // 2 - 1) * np.arange(WIDTH // 2))
    angles = np.arange(length)[:, None] * scales[None]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _add_positions(net: Net, x: Value, start: int, length: int) -> Value:
    table = net.normal((LONGEST_TEXT, WIDTH), 0.5 * EMBEDDING_STD)
    rows = net.parameter("embed_positions.weight", table[start : start + length], count=table.size)
    return scaled(net.node("Add", [x, rows], x.shape), mean=0.0, power=1.25 * EMBEDDING_STD**2)


def _tied_logits(net: Net, x: Value, embedding: str) -> Value:
    """Multiply by the transposed token table, which is stored once."""
    table = net.node("Transpose", [embedding], (WIDTH, VOCABULARY), name="proj_out/Transpose", perm=[1, 0])
    return net.node("MatMul", [x, table], (*x.shape[:2], VOCABULARY), name="proj_out/MatMul")


def _cache_inputs(
    net: Net, index: int, batch: int, past: int, audio: int
) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    def pair(part: str, length: int) -> tuple[Value, Value]:
        shape = (batch, HEADS, length, WIDTH // HEADS)
        key, value = (net.input(f"past_key_values.{index}.{part}.{kind}", shape) for kind in ("key", "value"))
        return key, value

    return pair("decoder", past), pair("encoder", audio)


def _decoder_layer(
    net: Net,
    x: Value,
    audio: Value | None,
    text_cache: tuple[Value, Value] | None,
    audio_cache: tuple[Value, Value] | None,
) -> tuple[Value, dict[str, Value]]:
    mask = _causal_mask(net, x.shape[1])
    x, text = _self_attention(net, x, text_cache, mask)
    presents = {"decoder.key": text[0], "decoder.value": text[1]}
    y = sequences.layer_norm(net, x, name="encoder_attn_layer_norm")
    with net.scope("encoder_attn"):
        query = _queries(net, y)
        if audio_cache is None:
            assert audio is not None
            audio_cache = _keys_and_values(net, audio)
            presents |= {"encoder.key": audio_cache[0], "encoder.value": audio_cache[1]}
        y = _attend(net, query, *audio_cache, None, std=blocks.residual_std(x))
    x = blocks.add(net, x, y)
    return _feed_forward(net, x), presents


def _causal_mask(net: Net, tokens: int) -> str | None:
    if tokens == 1:
        return None
    mask = np.triu(np.full((tokens, tokens), MASKED, np.float32), 1)
    return net.constant(mask[None, None], "causal_mask")


def _self_attention(
    net: Net, x: Value, cache: tuple[Value, Value] | None, mask: str | None
) -> tuple[Value, tuple[Value, Value]]:
    """Return the stream after the sublayer, and the keys and values of all tokens."""
    y = sequences.layer_norm(net, x, name="self_attn_layer_norm")
    with net.scope("self_attn"):
        query = _queries(net, y)
        key, value = _keys_and_values(net, y)
        if cache is not None:
            key, value = blocks.concat(net, [cache[0], key], axis=2), blocks.concat(net, [cache[1], value], axis=2)
        y = _attend(net, query, key, value, mask, std=blocks.residual_std(x))
    return blocks.add(net, x, y), (key, value)


def _queries(net: Net, x: Value) -> Value:
    query = sequences.linear(net, x, WIDTH, name="q_proj", std=sequences.SHARPNESS)
    return _heads(net, net.node("Mul", [query, net.scalar((WIDTH // HEADS) ** -0.5)], query.shape))


def _keys_and_values(net: Net, x: Value) -> tuple[Value, Value]:
    key = sequences.linear(net, x, WIDTH, name="k_proj", bias=False)
    return _heads(net, key), _heads(net, sequences.linear(net, x, WIDTH, name="v_proj"))


def _heads(net: Net, x: Value) -> Value:
    batch, tokens, _ = x.shape
    split = blocks.reshape(net, x, (batch, tokens, HEADS, WIDTH // HEADS))
    return blocks.transpose(net, split, (0, 2, 1, 3))


def _attend(net: Net, query: Value, key: Value, value: Value, mask: str | None, *, std: float) -> Value:
    shape = (*query.shape[:3], key.shape[2])
    scores = net.node("MatMul", [query, blocks.transpose(net, key, (0, 1, 3, 2))], shape)
    if mask is not None:
        scores = net.node("Add", [scores, mask], shape)
    return sequences.linear(net, sequences.attend(net, scores, value), WIDTH, name="out_proj", std=std)


def _feed_forward(net: Net, x: Value) -> Value:
    y = sequences.layer_norm(net, x, name="final_layer_norm")
    return blocks.add(net, x, sequences.mlp(net, y, HIDDEN, names=("fc1", "fc2"), std=blocks.residual_std(x)))
