"""A module that nobody has used before, for every client.

A module can remember what it has seen: in a counter, a cache, an attribute that `forward` sets. If
one module served two clients, the second one's update would depend on the first one's rows, and no
clip bounds that.

Guarantee: `fresh` returns a module in whose parameters, buffers and attributes nothing of an
earlier client is left. Modules that cannot remember anything, because they are made of torch's own
layers (or ours) without buffers and hooks, are handed out again as they are; all others are copied.
What a `forward` keeps outside its module, in a global or on its class, no copy can undo.
"""

from __future__ import annotations

import copy

from torch import nn

_KNOWN = ("torch.nn.modules.", "fedspend.models.")
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def remembers_nothing(module: nn.Module) -> bool:
    """Whether running the module cannot change it.

    >>> remembers_nothing(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    True
    """
    parts = all(
        type(part).__module__.startswith(_KNOWN)
        and "forward" not in vars(part)
        and not any(getattr(part, hooks, None) for hooks in _HOOKS)
        for part in module.modules()
    )
    watched = any(getattr(parameter, hooks, None) for parameter in module.parameters() for hooks in _PARAMETER_HOOKS)
    return parts and not watched and not any(True for _ in module.buffers())


def fresh(module: nn.Module) -> nn.Module:
    """`module` itself if it remembers nothing, else a copy of it."""
    return module if remembers_nothing(module) else copy.deepcopy(module)
