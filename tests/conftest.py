"""What every test has: the plugins. Fixtures live beside the tests that use them."""

pytest_plugins = ["pytester", "tests.databases", "tests.plugins.requirements", "tests.plugins.skips"]
