"""Look up plug-in objects by name: built in, from an installed package, or a class in a user's own file.

Twins, robots, tasks, backends, renderers, importers, exporters, checks, label rules, policies and encoders have one
`Registry` each. Built-in objects are given by the text of an entry point, so that their modules are imported at first
use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.extension import describe_error, load_class, split_mark

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Read-only mapping from names to the objects of one kind; an object is loaded when it is looked up.

    A built-in object takes precedence over an object with the same name from an installed package. The user approves
    the entry points of a package by installing it. The class in a user's file is loaded only if the user named or
    approved the file (see `core.extension`).

    Args:
        kind: Noun for messages (``"task"``).
        builtin: Objects by name. A text is the location of the object, as in an entry point: ``package.module:attribute
            [extra]``, with the extra of twinloop that the object needs, if any.
        group: Entry-point group in which installed packages offer objects; empty if they cannot.
        files: Whether ``path/to/file.py:ClassName`` is accepted as the name of a user's own class.
        listed_names: Function that returns the names that messages list, if more names are valid than the built-in
            ones.
        where: File, key or flag in which the names occur, for messages.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, T | str],
        *,
        group: str = "",
        files: bool = False,
        listed_names: Callable[[], Iterable[str]] | None = None,
        where: str = "",
    ) -> None:
        self.kind, self.group, self.where = kind, group, where
        self.builtin: dict[str, T | str] = dict(builtin)
        self._files, self._listed_names = files, listed_names

    def list_installed(self) -> dict[str, EntryPoint]:
        """Return the entry points of installed packages by name; of duplicate names, the first on Python's path."""
        found: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self.group) if self.group else ():
            found.setdefault(entry.name, entry)
        return found

    def find(self, name: str, *, where: str = "") -> T:
        """Return the object with a name, and load it if necessary.

        Args:
            name: Built-in name, name that an installed package offers, or ``path/to/file.py:ClassName``.
            where: File, key or flag in which the name occurs, for messages; by default that of the registry.

        Raises:
            UnknownNameError: If no object has this name. The message lists the most similar names.
            NotApprovedError: If data refer to a user's file, and the file is not approved.
            MissingDependencyError: If the object needs a package that is not installed.
            InputError: If the file or the installed package cannot be loaded.
        """
        if name in self.builtin:
            builtin = self.builtin[name]
            return (
                self._load_entry(EntryPoint(name, builtin, self.group))
                if isinstance(builtin, str)
                else cast("T", builtin)
            )
        if self._files and is_file_reference(name):
            return cast("T", load_class(self.kind, name, self._iterate_names()))
        if entry := self.list_installed().get(name):
            return self._load_entry(entry)
        where = where or self.where
        if self._files and (".py" in name or not where):
            return cast("T", load_class(self.kind, name, self._iterate_names()))
        raise UnknownNameError(self.kind, name, self._iterate_names(), where=where)

    def __getitem__(self, name: str) -> T:
        """Return the object with a name; see `find`."""
        return self.find(name)

    def __iter__(self) -> Iterator[str]:
        """Yield the built-in names, then the names from installed packages."""
        return iter({**self.builtin, **self.list_installed()})

    def __len__(self) -> int:
        """Return the number of built-in names and names from installed packages."""
        return len({**self.builtin, **self.list_installed()})

    def __contains__(self, name: object) -> bool:
        """Return whether a name is built in or offered by an installed package."""
        return name in self.builtin or name in self.list_installed()

    def _iterate_names(self) -> Iterator[str]:
        """Yield the names that error messages propose; they are computed only if a message is written.

        They are the result of ``listed_names``, or the built-in names, and then the names from installed packages.
        """
        yield from self._listed_names() if self._listed_names else self.builtin
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
    """Import the object at ``package.module:attribute``."""
    return EntryPoint("", place, "").load()


def is_file_reference(name: str) -> bool:
    """Return whether a name is ``path/to/file.py:ClassName``, also with a mark ``(named by …)`` at the end."""
    return split_mark(name)[0].rpartition(":")[0].endswith(".py")
