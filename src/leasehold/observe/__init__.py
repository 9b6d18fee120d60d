"""Hears facts, tells the world. Knows nothing of how they came about."""
