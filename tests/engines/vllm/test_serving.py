"""The engines that the tests start leave nothing behind, and touch nothing of others."""

from __future__ import annotations

from pathlib import Path

from tests.engines.vllm.serving import remove_shared_memory, rendezvous_of


def test_shared_memory_of_this_engine_alone_is_removed(tmp_path: Path) -> None:
    temporary, shared = tmp_path / "tmp", tmp_path / "shm"
    temporary.mkdir()
    shared.mkdir()
    (temporary / "vllm_dist_mine").touch()
    (temporary / "something").touch()
    for name in ("vllm_dist_mine-tp:0-[0-1]-cpushm_0", "vllm_dist_other-tp:0-[0-1]-cpushm_0", "something-else"):
        (shared / name).touch()

    remove_shared_memory(rendezvous_of(temporary), shared)

    assert sorted(path.name for path in shared.iterdir()) == ["something-else", "vllm_dist_other-tp:0-[0-1]-cpushm_0"]
