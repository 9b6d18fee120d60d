"""The entry of a worker process: catches signals first, then imports all the rest, which takes a tenth of a second."""

from __future__ import annotations

import os
import sys

from leasehold.processes.early import EarlySignals


def main() -> int:
    """Run a worker process: the exit code."""
    early = EarlySignals()
    from leasehold.app.worker import sit  # noqa: PLC0415 - see above

    return sit(sys.argv[1:], early)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a handler's thread that does not end must not keep the process
