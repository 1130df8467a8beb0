"""Audits: an empirical lower bound on epsilon, measured with the run's own code."""

from fedspend.audit.auditing import Audit, GroupAudit, audit

__all__ = ["Audit", "GroupAudit", "audit"]
