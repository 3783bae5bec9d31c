"""The KPIs, one file per family: each is a pure function of a connection's record, with its unit and source."""

from analysis.captures.kpi import Kpi
from core.registry import Registry

ALL = Registry(__name__, Kpi)
"""KPI name -> `Kpi`, in order of name."""
