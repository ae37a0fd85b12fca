"""The checkers of each lesson, one module a lesson."""
