"""The least that Table 2 needs: pyarrow reads six columns by row groups, numpy pairs each comparison. No tests.

python benchmarks/tables/pairing.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COLUMNS = ("iteration", "domain", "configuration", "outcome", "treatment_ok", "last_byte_s")
TEXTS = ("domain", "configuration", "outcome")


def main() -> None:
    folder = Path(sys.argv[1])
    comparisons = json.loads((folder / "campaign.json").read_text())["comparisons"]
    logs: dict[str, list[np.ndarray]] = {one["name"]: [] for one in comparisons}
    with pq.ParquetFile(folder / "downloads.parquet", read_dictionary=list(TEXTS)) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=list(COLUMNS)).combine_chunks()
            domain = table["domain"].chunk(0).indices.to_numpy()
            iteration = table["iteration"].to_numpy()
            starts = (np.diff(domain, prepend=-1) != 0) | (np.diff(iteration, prepend=-1) != 0)
            run = np.cumsum(starts) - 1
            good = pc.and_(
                pc.equal(table["outcome"].cast(pa.string()), "ok"), pc.fill_null(table["treatment_ok"], False)
            )
            time_s = np.where(good.to_numpy(), table["last_byte_s"].to_numpy(), np.nan)
            coded = table["configuration"].chunk(0)
            names = coded.dictionary.to_pylist()
            times = np.full((run[-1] + 1, len(names)), np.nan)
            times[run, coded.indices.to_numpy()] = time_s
            for one in comparisons:
                config, vs = (names.index(one[side]) for side in ("config", "vs"))
                ratio = np.log(times[:, vs] / times[:, config])
                logs[one["name"]].append(ratio[~np.isnan(ratio)])
    for name, parts in logs.items():
        values = np.concatenate(parts)
        print(f"{name}: {len(values)} pairs, median {np.exp(np.median(values)):.3f}")


if __name__ == "__main__":
    main()
