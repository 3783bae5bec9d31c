"""All tables of a dataset as values: what `upshift tables` prints and the report shows, each made once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from analysis.measures import costs, tables
from analysis.measures.client_effect import ClientEffectRow, client_effects
from analysis.measures.dataset import Dataset
from analysis.measures.limiters import LimiterRow, limiters
from analysis.measures.order import OrderEffects, order_effects
from analysis.measures.pairs import Samples
from analysis.measures.rows import Grouping, Metric, SpeedupRow
from analysis.measures.selection import Selection
from analysis.measures.stopping import StoppingOutcome, stoppings
from analysis.measures.tables import ConfigurationRow, DoseRow, Table1Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Table 1, the table of configurations, Table 2, its rows by dose, and what stands beside them."""

    table1: tuple[Table1Row, ...]
    configurations: tuple[ConfigurationRow, ...]
    table2: tuple[SpeedupRow, ...]
    dose: tuple[DoseRow, ...]
    """For all groups together."""
    client_effects: tuple[ClientEffectRow, ...] = ()
    """What the client alone does; none if there is nothing to tell it by, or by another metric than time."""
    limiters: tuple[LimiterRow, ...] = ()
    """Per configuration and provider; none if no capture was inspected."""
    order: OrderEffects
    """What position and predecessor did to the times."""
    stopping: tuple[StoppingOutcome, ...]
    """For campaigns with a rule to stop early, one per vantage point."""

    def rows(self, name: str) -> Sequence[Any]:
        """The rows of a table, by its stem."""
        rows: Sequence[Any] = self.table2 if name == "splits" else getattr(self, name)
        return rows


def results(
    data: Dataset,
    *,
    metric: Metric,
    selection: Selection,
    by: Grouping | None = None,
    read: Dataset | None = None,
    of_table1: Dataset | None = None,
) -> tuple[Results, Samples]:
    """The tables, and the samples that speed-ups are made from; see `tables.table2` for the arguments.

    Args:
        read: what speed-ups are made from, if that is another reading of the data than all else.
        of_table1: what Table 1 counts, if that is another one.

    Raises:
        UsageError: the metric needs KPIs that no folder has.
    """
    read, of_table1 = read or data, of_table1 or data
    with ThreadPoolExecutor(2) as pool:  # Each of these alone uses one core.
        costs_of = pool.submit(costs.samples, read, metric=metric, selection=selection)
        table1 = pool.submit(tables.table1, of_table1)
        configurations = pool.submit(tables.configurations, data)
        limiters_of = pool.submit(limiters, data)
        order = pool.submit(order_effects, data.downloads, unproven=selection.unproven)
    samples = costs_of.result()
    made = Results(
        table1=tuple(table1.result()),
        configurations=tuple(configurations.result()),
        table2=tuple(tables.table2(read, metric=metric, by=by, selection=selection, samples=samples)),
        dose=tuple(tables.dose_rows(read, samples)),
        client_effects=tuple(client_effects(read.design, samples)) if metric is Metric.TIME else (),
        limiters=tuple(limiters_of.result()),
        order=order.result(),
        stopping=tuple(stoppings(data, unproven=selection.unproven)),
    )
    return made, samples
