"""Tile candidates and their cache: no TVM needed."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilers import PassingError
from compilers.tvm.cache import Decision, TileCache, cache_root
from compilers.tvm.tiles import Nest, Registers, TileConfig, blocked, candidates, refusal, uneven

if TYPE_CHECKING:
    from pathlib import Path

AVX512 = Registers(lanes=16, count=32)

nests = st.builds(
    Nest,
    channels=st.integers(1, 2048),
    columns=st.integers(1, 224),
    rows=st.integers(1, 224),
    reduction=st.integers(1, 5000),
    input_channels=st.integers(1, 512),
    padded=st.booleans(),
    shared=st.booleans(),
)


def convolution(channels: int, columns: int, reduction: int) -> Nest:
    return Nest(
        channels=channels,
        columns=columns,
        rows=columns,
        reduction=reduction,
        input_channels=64,
        padded=True,
        shared=True,
    )


@given(nest=nests, bits=st.sampled_from([128, 256, 512]), limit=st.integers(1, 9))
def test_tiles_divide_the_output_and_differ(nest: Nest, bits: int, limit: int) -> None:
    found = candidates(nest, Registers.of_width(bits), limit)
    assert 1 <= len(found) <= limit
    assert len(set(found)) == len(found)
    for tile in found:
        assert nest.channels % tile.channels == 0
        assert nest.columns % tile.columns == 0
        assert tile.channels % tile.lanes == 0
        assert nest.padded or not tile.inline_pad


@pytest.mark.parametrize("nest", [convolution(512, 7, 4608), convolution(64, 56, 576), convolution(256, 14, 2304)])
def test_the_first_tile_keeps_its_sums_in_registers_and_reuses_the_weights(nest: Nest) -> None:
    first = candidates(nest, AVX512, 1)[0]
    assert first.lanes == 16
    assert 8 <= first.accumulators <= 24
    assert first.columns >= 4


def test_a_dot_product_has_the_lanes_of_its_instruction() -> None:
    nest = dataclasses.replace(convolution(64, 56, 576), dot_lanes=(8, 4), weight_bytes=1)
    assert {tile.lanes for tile in candidates(nest, AVX512, 9)} == {8}
    tile = TileConfig(channels=64, columns=7, lanes=8)
    assert refusal(tile, nest) is None
    for lanes in (2, 16):
        assert refusal(dataclasses.replace(tile, lanes=lanes), nest) == "the dot-product instruction has 8 or 4 lanes"


def test_a_depthwise_nest_pads_inside() -> None:
    nest = Nest(channels=96, columns=14, rows=14, reduction=25, input_channels=96, padded=True, shared=False)
    assert candidates(nest, AVX512, 1)[0].inline_pad


@pytest.mark.parametrize(("rows", "threads", "outer"), [(14, 1, False), (14, 2, False), (7, 1, False), (7, 2, True)])
def test_threads_share_the_channels_of_a_depthwise_nest_where_rows_are_uneven(
    rows: int, threads: int, *, outer: bool
) -> None:
    nest = Nest(channels=96, columns=7, rows=rows, reduction=9, input_channels=96, padded=True, shared=False)
    assert candidates(nest, AVX512, 1, threads)[0].channels_outer is outer


@given(iterations=st.integers(1, 300), threads=st.integers(1, 16))
def test_the_busiest_thread_has_the_most_iterations(iterations: int, threads: int) -> None:
    shares = [len(range(thread, iterations, threads)) for thread in range(threads)]
    assert uneven(iterations, threads) == pytest.approx(max(shares) / (iterations / threads))


def test_a_decision_is_read_back(tmp_path: Path) -> None:
    cache = TileCache(tmp_path / "new" / "folder")
    tile = TileConfig(channels=32, columns=7, lanes=16, inline_pad=True)
    tiled = Decision(build="tiled", config=tile, time_s=1e-4, miscompiled=("plain",))
    plain = Decision(build="safe", reason="it has 2 reductions")
    for key, decision in (("a", tiled), ("b", plain)):
        cache.put(key, decision)
        assert cache.get(key) == decision
    assert cache.get("c") is None
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["a.json", "b.json"]


GOOD = {"schema": 1, "build": "flat", "config": None, "time_s": 1.0, "reason": "", "miscompiled": []}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps(GOOD | {"schema": 0}),
        json.dumps(GOOD | {"build": "fast"}),
        json.dumps(GOOD | {"build": "tiled"}),
        json.dumps(GOOD | {"config": {"channels": 1}}),
        json.dumps(GOOD | {"more": 1}),
    ],
)
def test_an_entry_that_this_version_did_not_write_is_no_entry(tmp_path: Path, text: str) -> None:
    (tmp_path / "key.json").write_text(text)
    assert TileCache(tmp_path).get("key") is None


def test_the_users_folder_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEFRONTIER_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    TileCache.for_build("1.0+ab/c", "cpu").put("k", Decision(build="flat"))
    assert (tmp_path / "tvm" / "1.0+ab_c-cpu" / "k.json").exists()
    monkeypatch.delenv("EDGEFRONTIER_CACHE")
    assert cache_root().parts[-2:] == (".cache", "edgefrontier")


def test_a_cache_that_cannot_be_written_is_no_word_on_the_graph(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PassingError, match="set EDGEFRONTIER_CACHE to another folder"):
        TileCache(tmp_path / "file" / "below").put("k", Decision(build="flat"))


@given(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 260)), st.tuples(*[st.integers(1, 300)] * 3))
def test_a_block_is_no_larger_than_asked_and_comes_out_even(
    extents: tuple[int, int, int], asked: tuple[int, int, int]
) -> None:
    lines, columns, channels = extents
    nest = Nest(channels=channels, columns=columns, rows=lines, lines=lines, reduction=72, input_channels=8,
                padded=True, shared=True)  # fmt: skip
    tile = blocked(nest, Registers(lanes=32, count=32), asked)
    assert refusal(tile, nest) is None
    assert tile.block is not None
    assert all(size <= most for size, most in zip(tile.block, asked, strict=True))
    assert TileConfig.from_json(json.loads(json.dumps(tile.to_json()))) == tile


def test_a_block_has_whole_dot_products() -> None:
    nest = dataclasses.replace(convolution(96, 56, 576), lines=56, dot_lanes=(32,))
    tile = blocked(nest, Registers(lanes=32, count=32), (8, 10, 4))
    assert (tile.block, tile.lanes) == ((8, 8, 32), 32)
    assert refusal(tile, nest) is None


def test_a_block_that_cuts_register_tiles_is_refused() -> None:
    nest = dataclasses.replace(convolution(64, 56, 576), lines=56)
    tile = TileConfig(channels=32, columns=7, lanes=16, block=(8, 28, 64))
    assert refusal(tile, nest) is None
    for block in ((9, 28, 64), (8, 10, 64), (8, 28, 48), (0, 28, 64)):
        assert "not of whole register tiles" in (refusal(dataclasses.replace(tile, block=block), nest) or "")
