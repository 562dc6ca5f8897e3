"""What idle clients would send now: their last updates, or those and a Hessian product."""

from secureafl.defenses.secureafl.estimate.hessian import HessianProduct
from secureafl.defenses.secureafl.estimate.last_update import LastUpdate

__all__ = ["HessianProduct", "LastUpdate"]
