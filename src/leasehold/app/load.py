"""Finds the user's App by module, module and object, or file. Only what the command line names is ever imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from leasehold.app.app import App
from leasehold.core.errors import WrongTargetError


def load(target: str) -> App:
    """The App that `target` names: `shop.jobs`, `shop.jobs:app` or `app.py`."""
    place, colon, name = target.partition(":")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    if colon:
        found = getattr(module, name, None)
        if not isinstance(found, App):
            raise WrongTargetError(f"{place} has no App called {name!r}.", target=target, found=type(found).__name__)
        return found
    apps = {value for value in vars(module).values() if isinstance(value, App)}
    if not apps:
        raise WrongTargetError(f"{place} has no App: it needs a line like `app = App()`.", target=target)
    if len(apps) > 1:
        raise WrongTargetError(f"{place} has {len(apps)} Apps; name the one that is meant.", target=target)
    return apps.pop()


def _from_file(path: Path) -> ModuleType:
    """Load the file itself: importing it by its name would find another module where it is called like a library."""
    path = path.resolve()
    if not path.is_file():
        raise WrongTargetError("There is no such file.", file=str(path))
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem not in sys.modules else f"leasehold_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _from_module(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise WrongTargetError(f"There is no module {error.name!r} here.", target=name, folder=folder) from error
        raise
    except (TypeError, ValueError) as error:  # "", ".jobs": no name of a module
        raise WrongTargetError("That is no name of a module.", target=name) from error
