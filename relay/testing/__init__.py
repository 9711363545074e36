"""Library: contract tests of the doors, for the tests of a feature; see docs/extending.md."""
