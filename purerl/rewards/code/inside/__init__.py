"""The code in the sandboxes of function tests. These files are sent there as text: the standard library only."""
