"""Discovery of plug-ins: every module of a plug-in folder is one variant.

A folder's `__init__` defines the kind and ends with `ALL = Registry(__name__, Factor)`. The registry imports each
module of the folder whose name does not start with an underscore, requires at least one public instance of the kind in
it, and refuses two variants of one name. Adding a variant is adding a file.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from core.errors import UsageError, use_one_of


class Named(Protocol):
    """Anything with a unique name."""

    @property
    def name(self) -> str: ...


Variant = TypeVar("Variant", bound=Named)


class Registry(Generic[Variant], Mapping[str, Variant]):
    """A lazy mapping from name to variant, in order of name.

    Raises:
        LookupError: a module without a variant, or two variants of one name (an error in the code, not of a user).
    """

    def __init__(self, package: str, kind: type[Variant]) -> None:
        self._package = package
        self._kind = kind

    @cached_property
    def _variants(self) -> dict[str, Variant]:
        package = importlib.import_module(self._package)
        by_name: dict[str, Variant] = {}
        for module_info in pkgutil.iter_modules(package.__path__):
            if module_info.name.startswith("_"):
                continue
            module = importlib.import_module(f"{self._package}.{module_info.name}")
            variants = [
                value
                for key, value in vars(module).items()
                if isinstance(value, self._kind) and not key.startswith("_")
            ]
            if not variants:
                raise LookupError(f"{module.__name__} holds no {self._kind.__name__}; give it one, or remove the file")
            for variant in variants:
                if by_name.setdefault(variant.name, variant) is not variant:
                    raise LookupError(f"{module.__name__}: there are two {self._kind.__name__}s named {variant.name!r}")
        return dict(sorted(by_name.items()))

    def pick(self, name: str, *, where: str) -> Variant:
        """The variant of that name. Raises UsageError that lists the known names."""
        try:
            return self._variants[name]
        except KeyError:
            word = re.findall("[A-Z][a-z]*", self._kind.__name__)[-1].lower()
            what = f"unknown {word} {name!r}"
            raise UsageError(what, where=where, remedy=use_one_of(name, self._variants)) from None

    def __getitem__(self, name: str) -> Variant:
        return self._variants[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variants)

    def __len__(self) -> int:
        return len(self._variants)
