"""The figures of initial windows, one file each: `upshift survey figures --figure NAME`."""

from survey.charts import Chart
from upshift.registry import Registry

ALL = Registry(__name__, Chart)
