"""The memory that a run needs on each rank, computed from its configuration before anything is loaded."""

from purerl.planning.plan import MemoryPlan, plan_memory

__all__ = ["MemoryPlan", "plan_memory"]
