"""Look up objects by name: built in, offered by an installed package, or a class in a user's own file.

Twins, robots, tasks, backends, renderers, importers, exporters, checks, rules, policies and encoders each have one
`Registry`. Built-in objects are named as in an entry point, so that they are imported at their first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.extension import describe_error, load_class, split_mark

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Registry of the objects of one kind by name; each is loaded when it is looked up.

    A built-in name comes before the same name of an installed package. Installing a package approves its entry points;
    a user's file runs by the rules of `core.extension`.

    Args:
        kind: the noun in messages (``"task"``).
        builtin: objects by name; a text gives the location of the object, as in an entry point:
            ``package.module:attribute [extra]``, with the extra of twinloop that it needs, if any.
        group: entry-point group in which installed packages offer objects; empty if they cannot.
        files: whether ``path/to/file.py:ClassName`` names a user's own class.
        shown: names that messages list in place of the built-in ones.
        where: place of an unknown name, for messages.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, T | str],
        *,
        group: str = "",
        files: bool = False,
        shown: Callable[[], Iterable[str]] | None = None,
        where: str = "",
    ) -> None:
        self.kind, self.group, self.where = kind, group, where
        self.builtin: dict[str, T | str] = dict(builtin)
        self._files, self._shown = files, shown

    def list_installed(self) -> dict[str, EntryPoint]:
        """Return the entry points of installed packages by name; of duplicates, the first on Python's path."""
        found: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self.group) if self.group else ():
            found.setdefault(entry.name, entry)
        return found

    def find(self, name: str, *, where: str = "") -> T:
        """Return the object of a name.

        Args:
            name: a built-in name, a name that an installed package offers, or ``path/to/file.py:ClassName``.
            where: place of the name, for messages; by default the registry's.

        Raises:
            UnknownNameError: none of these; lists the nearest names.
            NotApprovedError: data refer to the file, and it is not approved.
            MissingDependencyError: it needs a package that is not installed.
            InputError: the file or the installed package cannot be loaded.
        """
        if name in self.builtin:
            held = self.builtin[name]
            return self._load_entry(EntryPoint(name, held, self.group)) if isinstance(held, str) else cast("T", held)
        if self._files and is_file(name):
            return cast("T", load_class(self.kind, name, self._iterate_names()))
        if entry := self.list_installed().get(name):
            return self._load_entry(entry)
        where = where or self.where
        if self._files and (".py" in name or not where):
            return cast("T", load_class(self.kind, name, self._iterate_names()))
        raise UnknownNameError(self.kind, name, self._iterate_names(), where=where)

    def __getitem__(self, name: str) -> T:
        """Return the object of a name; see `find`."""
        return self.find(name)

    def __iter__(self) -> Iterator[str]:
        """Yield the built-in names, then those of installed packages."""
        return iter({**self.builtin, **self.list_installed()})

    def __len__(self) -> int:
        """Return the number of names."""
        return len({**self.builtin, **self.list_installed()})

    def __contains__(self, name: object) -> bool:
        """Return whether a name is built in or offered by an installed package."""
        return name in self.builtin or name in self.list_installed()

    def _iterate_names(self) -> Iterator[str]:
        """Yield the names for messages; they are computed only when a message is written."""
        yield from self._shown() if self._shown else self.builtin
        yield from self.list_installed()

    def _load_entry(self, entry: EntryPoint) -> Any:
        package = "twinloop" if entry.dist is None else entry.dist.name
        try:
            return entry.load()
        except ImportError as error:
            if package == "twinloop" and not entry.extras:
                raise
            wanted = f'"{package}[{",".join(entry.extras)}]"' if entry.extras else f"--upgrade {package}"
            raise MissingDependencyError(
                f"The {self.kind} {entry.name} needs a package that is not installed ({error}).",
                remedy=f"pip install {wanted}",
            ) from error
        except Exception as error:  # any error is reported as a fault of the installed package
            if entry.dist is None:
                raise
            raise InputError(
                f"The {self.kind} {entry.name} of the package {package} cannot be loaded: {describe_error(error)}."
            ) from error


def load_object(place: str) -> Any:
    """Import the object of ``package.module:attribute``."""
    return EntryPoint("", place, "").load()


def is_file(name: str) -> bool:
    """Return whether a name has the form of a user's own class, ``path/to/file.py:ClassName``, marked or not."""
    return split_mark(name)[0].rpartition(":")[0].endswith(".py")
