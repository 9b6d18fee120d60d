"""`leasehold`: the commands."""

from __future__ import annotations

import sys

from leasehold.processes.early import EarlySignals


def main() -> None:
    """Run the command line."""
    early = EarlySignals() if sys.argv[1:2] == ["worker"] else None
    try:
        from leasehold.cli.commands import run  # noqa: PLC0415 - a worker's signals are caught before this takes its time
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(run(sys.argv[1:], early))


if __name__ == "__main__":
    main()
