"""The surveys, one file each: `upshift survey NAME`."""

from core.registry import Registry
from survey.survey import Survey

ALL = Registry(__name__, Survey)
