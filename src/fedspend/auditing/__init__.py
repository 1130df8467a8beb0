"""Audits: an empirical lower bound on epsilon, measured with the run's own code."""

from fedspend.auditing.entry import Audit, GroupAudit, audit

__all__ = ["Audit", "GroupAudit", "audit"]
