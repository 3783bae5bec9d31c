"""The size of a campaign's folder: looked at where it could matter, not for each run."""

from __future__ import annotations

from pathlib import Path

from downloader.campaign.limits import Disk
from downloader.limits.disk import TABLES_BYTES, FolderDisk, used_bytes

MB = 1_000_000


def test_a_folder_is_looked_through_where_the_limit_is_near_or_the_size_is_old(tmp_path: Path) -> None:
    looks: list[int] = []
    clock = [0.0]
    disk = FolderDisk(
        tmp_path,
        Disk(limit=TABLES_BYTES + 100 * MB, reserve=0),
        tell=looks.append,
        monotonic=lambda: clock[0],
    )

    def over(needed: int) -> tuple[int, str | None]:
        return disk.over("MUC", needed, 0, most=90 * MB)

    for _ in range(8):
        assert over(10 * MB)[1] is None
    assert len(looks) == 1, "seven runs took 70 MB at most, which cannot matter"
    clock[0] = 61.0
    over(10 * MB)
    assert len(looks) == 2, "an old size is taken anew"
    (tmp_path / "capture").write_bytes(bytes(95 * MB))
    for _ in range(20):
        too_many, why = over(10 * MB)
        if why is not None:
            break
    assert why is not None and too_many >= 5 * MB, "what was written is seen before the limit"
    assert looks[-1] == used_bytes(tmp_path)
    (tmp_path / "capture").unlink()
    assert over(10 * MB)[1] is None, "a pause ends as soon as there is room"
