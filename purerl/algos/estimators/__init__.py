"""Advantage estimators, as functions of plain tensors."""
