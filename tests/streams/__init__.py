"""Tests of the streams for foreign front ends."""
