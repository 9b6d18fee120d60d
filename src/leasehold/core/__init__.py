"""Values and decisions: no I/O, no clock, no logging, no randomness. All here is a function of its arguments."""
