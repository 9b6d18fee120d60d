"""What is done with a job: registry, execution, the worker's loop, recovery. Never knows in which process it lives."""
