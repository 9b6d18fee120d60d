"""The tasks that a process knows, by name. A job names its task; nothing is ever imported because a row says so."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from leasehold.core.errors import TaskExistsError, WrongArgumentsError, WrongTaskError
from leasehold.core.policy import Backoff
from leasehold.runtime.context import Job

_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A function and its policy. `signature` is that of the arguments, without the `Job`."""

    name: str
    fn: Callable[..., Any]
    queue: str
    lease_s: float
    timeout_s: float | None
    max_attempts: int
    retry: Backoff | None
    wants_job: bool
    is_async: bool
    signature: inspect.Signature

    @cached_property
    def _names(self) -> frozenset[str] | None:
        """What a complete payload names; None where the function takes any name."""
        kinds = {parameter.kind for parameter in self.signature.parameters.values()}
        return None if inspect.Parameter.VAR_KEYWORD in kinds else frozenset(self.signature.parameters)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name; refused where the function does not take them."""
        if not args and kwargs.keys() == self._names:
            return kwargs  # every parameter by its name: binding them would cost a tenth of a short job
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            # Names and counts, not values: errors end in logs, and arguments may be secrets.
            given = [f"{len(args)} by position", *kwargs]
            raise WrongArgumentsError(f"{self.name}{self.signature}: {error}.", given=given) from error
        named = dict(bound.arguments)
        for parameter in self.signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                named |= named.pop(parameter.name, {})
        return named


class Registry:
    """Tasks by their names."""

    def __init__(self) -> None:
        self._tasks: dict[str, TaskSpec] = {}

    def add(self, spec: TaskSpec) -> None:
        """Register a task; a second one of the same name is refused."""
        if (known := self._tasks.get(spec.name)) is not None:
            raise TaskExistsError(name=spec.name, first=_place(known.fn), second=_place(spec.fn))
        self._tasks[spec.name] = spec

    def get(self, name: str) -> TaskSpec | None:
        """The task of this name."""
        return self._tasks.get(name)

    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self._tasks)

    def __iter__(self) -> Iterator[TaskSpec]:
        return iter(self._tasks.values())


def arguments_of(fn: Callable[..., Any], name: str) -> tuple[inspect.Signature, bool]:
    """The signature of a job's arguments, and whether the function wants the `Job` before them."""
    try:
        signature = inspect.signature(fn, eval_str=True)
    except NameError:  # a name that only type checkers know
        signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())
    wants_job = bool(parameters) and _is_job(parameters[0].annotation)
    arguments = parameters[1:] if wants_job else parameters
    for parameter in arguments:
        if parameter.kind in _BY_POSITION:
            raise WrongTaskError(
                f"{name} takes {parameter} by position; a job stores its arguments by name.", function=_place(fn)
            )
    return signature.replace(parameters=arguments, return_annotation=inspect.Signature.empty), wants_job


def _is_job(annotation: object) -> bool:
    if isinstance(annotation, str):  # see above: then the name must do
        return annotation.split(".")[-1] == Job.__name__
    return annotation is Job


def _place(fn: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(fn)
