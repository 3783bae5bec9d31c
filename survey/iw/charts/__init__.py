"""The figures of initial windows, one file each: `upshift survey figures --figure NAME`."""

from core.registry import Registry
from survey.charts import Chart

ALL = Registry(__name__, Chart)
