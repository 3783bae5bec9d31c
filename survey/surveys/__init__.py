"""The surveys, one file each: `upshift survey NAME`."""

from survey.survey import Survey
from upshift.registry import Registry

ALL = Registry(__name__, Survey)
