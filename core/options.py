"""Commands whose options are the fields of dataclasses, declared once and passed on as one value; lists in `--help`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Any, get_type_hints

from typer import Typer
from typer.core import TyperCommand, TyperGroup

from core.errors import UsageError


def parameters_of(model: Any, defaults: Mapping[str, Any] = MappingProxyType({})) -> Iterator[Parameter]:
    """A parameter of a command for each field of a dataclass, whose annotations are Typer's.

    Args:
        defaults: name -> default, where it is not that of the field.
    """
    hints = get_type_hints(model, include_extras=True)
    for entry in fields(model):
        default = defaults.get(entry.name, entry.default)
        shown = Parameter.empty if default is MISSING else default
        yield Parameter(entry.name, Parameter.KEYWORD_ONLY, default=shown, annotation=hints[entry.name])


def own_parameters(work: Callable[..., None], *, skip: Collection[str] = ()) -> Iterator[Parameter]:
    """The parameters of a command's function, save some; in place of one that is a dataclass, its fields."""
    hints = get_type_hints(work, include_extras=True)
    for one in signature(work).parameters.values():
        if one.name in skip:
            continue
        if is_dataclass(hint := hints[one.name]):
            yield from parameters_of(hint)
        else:
            yield one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint)


def as_command(
    call: Callable[..., None], parameters: Iterable[Parameter], *, like: Callable[..., None]
) -> Callable[..., None]:
    """`call` with these parameters, and with the name and the help of `like`."""
    shown = list(parameters)
    call.__name__, call.__doc__, call.__module__ = like.__name__, like.__doc__, like.__module__
    call.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return call


def with_options(work: Callable[..., None]) -> Callable[..., None]:
    """The command of a function some of whose parameters are dataclasses: it gets values of these."""
    hints = get_type_hints(work, include_extras=True)
    models: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    def call(**given: Any) -> None:
        made = {name: model(**{f.name: given.pop(f.name) for f in fields(model)}) for name, model in models.items()}
        work(**given, **made)

    return as_command(call, own_parameters(work), like=work)


def command_group(help: str, kind: type[TyperGroup] = TyperGroup) -> Typer:
    """A group of commands, which it stays with one command, too."""
    app = Typer(cls=kind, no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=help)
    app.callback()(lambda: None)
    return app


def listings(command: Any) -> Mapping[str, Iterable[tuple[str, str]]]:
    """Lists that belong to a command's help: title -> names and meanings, from `NAME_listing` beside its function."""
    function = inspect.unwrap(command.callback) if command.callback else None
    listing = getattr(inspect.getmodule(function), f"{getattr(function, '__name__', '')}_listing", None)
    return listing() if listing else {}


class ListingCommand(TyperCommand):
    """A command whose `--help` ends with its `listings`, which are made only then.

    Of numbers, nan and inf are refused: they pass whatever range an option has.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for name, value in ctx.params.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(
                    f"{value} is not a number that can be used",
                    where=f"--{name.replace('_', '-')}",
                    remedy="give a finite number",
                )
        return rest

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        super().format_epilog(ctx, formatter)
        for title, rows in listings(self).items():
            with formatter.section(title):
                formatter.write_dl(list(rows))
