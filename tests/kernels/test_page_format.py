"""A page format is the layout's, in bytes."""

from __future__ import annotations

import pytest
import torch

from hicache_storage.errors import LayoutError
from hicache_storage.kernels import DevicePool, PageFormat
from hicache_storage.layout import Grid, KVShape, Shard, ShardLayout

MHA = KVShape.mha(num_layers=6, num_kv_heads=8, head_dim=16, v_head_dim=8, dtype="bf16", page_tokens=4)
MLA = KVShape.mla(num_layers=6, latent_dim=36, dtype="bf16", page_tokens=4)
LAYOUTS = {
    "mha": ShardLayout(MHA, Grid(3, 2), Shard(range(3, 6), range(4))),
    "mha, half a group": ShardLayout(MHA, Grid(3, 2), Shard(range(3), range(1, 2))),
    "mla": ShardLayout(MLA, Grid(3, 0), Shard(range(6), range(0))),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_cells_lie_where_the_layout_says(name: str) -> None:
    layout = LAYOUTS[name]
    page_format = PageFormat.of(layout)

    assert (page_format.page_nbytes, page_format.cell_nbytes) == (layout.page_nbytes, layout.cell_nbytes)
    for group in range(layout.groups):
        for layer in range(len(layout.shard.layers)):
            offset = layout.chunk_span(range(layer, layer + 1), group)[0]
            assert page_format.offset(group, layer) == offset


def test_values_start_behind_the_keys_of_all_tokens() -> None:
    assert PageFormat.of(LAYOUTS["mha"]).v_offset == 4 * 2 * 16 * 2


def test_a_pool_has_the_format_of_its_layout() -> None:
    keys = [torch.zeros(8, 4, 16, dtype=torch.bfloat16) for _ in range(3)]
    values = [torch.zeros(8, 4, 8, dtype=torch.bfloat16) for _ in range(3)]
    latent = torch.zeros(6, 8, 36, dtype=torch.bfloat16)

    assert DevicePool.of_layers(keys, values, 4).page_format(2) == PageFormat.of(LAYOUTS["mha"])
    assert DevicePool.of_stacked(latent, 4).page_format(LAYOUTS["mla"].group_heads) == PageFormat.of(LAYOUTS["mla"])


def test_a_cell_outside_the_page_is_refused() -> None:
    page_format = PageFormat.of(LAYOUTS["mha"])

    with pytest.raises(LayoutError, match="group 2, layer 0 is not in a page of 2 groups and 3 layers"):
        page_format.offset(2, 0)
    with pytest.raises(LayoutError, match="group 0, layer 3 is not in a page of 2 groups and 3 layers"):
        page_format.offset(0, 3)


def test_a_pool_of_some_layers_has_pages_of_those_alone() -> None:
    pool = DevicePool.of_stacked(torch.zeros(6, 2, 8, 4, 16), 4)

    some = pool.select_layers(range(2, 5))

    assert (some.num_layers, some.num_pages) == (3, 2)
    assert some.page_format(2).page_nbytes * 2 == pool.page_format(2).page_nbytes
    assert [key.data_ptr() for key in some.keys] == [key.data_ptr() for key in pool.keys[2:5]]
