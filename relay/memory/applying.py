"""One kept save and its store: stored, refused for good, or to be tried again later."""

from __future__ import annotations

from dataclasses import replace

from relay.core.errors import ConfigError, NotFound, RelayError, UsageError
from relay.memory.backend import Backend, StoreUnavailable
from relay.memory.outbox import Outbox, Waiting
from relay.memory.records import Place, Scope

#: So often the store may fail at one save (not: be away), or its process die of it, before that
#: counts as refused.
TRIES_MAX = 8


class Forbidden(RelayError):
    """A save that its agent may not make."""

    code = "forbidden"


def apply(outbox: Outbox, backend: Backend, save: Waiting) -> str:
    """Give ``save`` to the store. "" when the next one may be tried: it is stored, or refused.

    Else why the store failed. Raises StoreUnavailable and ConfigError: no save can be stored now.
    """
    if save.tries >= TRIES_MAX:
        outbox.refuse(save, "the store's process ended each time it was to store it")
        return ""
    # Counted before: whoever tries it may not live to count it.
    outbox.trying(save)
    try:
        id_ = _stored(outbox, backend, save)
    except (StoreUnavailable, ConfigError):
        outbox.untried(save)
        raise
    except (UsageError, NotFound, Forbidden) as error:
        outbox.refuse(save, error.message)
        return ""
    except Exception as error:
        why = error.message if isinstance(error, RelayError) else f"{error!r}"[:500]
        if save.tries + 1 < TRIES_MAX:
            return why
        outbox.refuse(save, why)
        return ""
    outbox.applied(save, id_)
    return ""


def check_may_replace(backend: Backend, save: Waiting) -> None:
    """Raises Forbidden when an agent supersedes what it could not be shown when it asked for that,
    and what is not its own.

    Narrower than what one may who is there: nothing of another project than the save's own.
    """
    if save.supersedes is None or save.agent is None:
        return
    old = backend.get(save.supersedes).place
    own = Place(Scope.AGENT, save.agent)
    if old.scope is not Scope.USER and old not in (save.place, own):
        raise Forbidden(f"{save.agent} may not replace a memory of {old}", hint="ask the person")


def _stored(outbox: Outbox, backend: Backend, save: Waiting) -> str:
    """The id under which the store has it now."""
    if save.supersedes is not None:
        save = replace(save, supersedes=outbox.alias(save.supersedes) or save.supersedes)
        check_may_replace(backend, save)
    saved = backend.save(
        save.text,
        save.place,
        agent=save.agent,
        session=save.session,
        supersedes=save.supersedes,
        meta=save.meta,
        now_ms=save.now_ms,
        new_id=save.id,
    )
    return saved.memory.id
