"""Audits: an empirical lower bound on epsilon, through the run's own code, beside the claim."""

from fedspend.audit.auditing import Audit, GroupAudit, audit

__all__ = ["Audit", "GroupAudit", "audit"]
