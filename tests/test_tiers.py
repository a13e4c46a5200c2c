"""Tests run when they should, and each file is in a room."""
