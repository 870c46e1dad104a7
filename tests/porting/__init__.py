"""Tests of purerl.porting."""
