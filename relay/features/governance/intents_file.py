"""The file ``.orchestration/active_intents.yaml`` of one project: read, and its statuses changed.

A file of its own beside ``intents``, which is pure. It is read at each use and parsed when it has
changed, so that what a person saves holds from the next tool call on.
"""

from __future__ import annotations

import os
import re
import threading

from relay.core.errors import RelayError, StorageError
from relay.core.yaml_tree import Mistake
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.intents import (
    FILE_MAX,
    INTENTS_FILE,
    Intent,
    IntentDocument,
    IntentsError,
    Status,
    check_id,
    parse,
    with_status,
)
from relay.features.governance.orchestration_files import edit_text, read_text

_MAKE = "relay init --governed writes one to begin with"
#: A byte that is no UTF-8, as it was read.
_ODD = re.compile("[\udc80-\udcff]")


class IntentsFile:
    """The intents of the project in ``root``. Safe to use from several threads."""

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root, FOLDER, INTENTS_FILE)
        self._root = root
        self._lock = threading.Lock()
        self._text: str | None = None
        self._made: IntentDocument | IntentsError = IntentDocument()

    def read(self) -> IntentDocument:
        """What is in the file now. Raises IntentsError, also where there is no such file."""
        try:
            text = read_text(self._root, INTENTS_FILE, FILE_MAX)
        except StorageError as error:
            why = error.details.get("why", error.message)
            raise IntentsError([Mistake(0, str(why))], _MAKE) from None
        if text is None:
            raise IntentsError([Mistake(0, "the file is not there")], _MAKE)
        return self._document(text)

    def set_status(
        self, id: str, status: Status, only_from: tuple[Status, ...] = tuple(Status)
    ) -> Intent:
        """Write another status of an intent into the file, and return it as it is then.

        Raises IntentsError, NotFound (it says which ids are valid), and RelayError where the intent
        has none of the statuses ``only_from``, or the file cannot be written.
        """

        def change(text: str) -> str:
            intent = check_id(self._document(text), id)
            if intent.status == status:
                return text
            if intent.status not in only_from:
                raise RelayError(
                    f"intent {id} is {intent.status}, so it does not become {status}",
                    hint="a person changes it with: relay intent status ID STATUS",
                    code="intent_status",
                )
            return with_status(text, id, status)

        self.read()  # says it in the words for a file of intents, where it cannot be read
        edit_text(self._root, INTENTS_FILE, change, FILE_MAX)
        return check_id(self.read(), id)

    def _document(self, text: str) -> IntentDocument:
        with self._lock:
            if text != self._text:
                try:
                    self._made = parse(_checked(text))
                except IntentsError as error:
                    self._made = error
                self._text = text
            made = self._made
        if isinstance(made, IntentsError):
            raise IntentsError(made.mistakes, made.hint)  # a new one: the old has a traceback
        return made


def _checked(text: str) -> str:
    if odd := _ODD.search(text):
        line = text.count("\n", 0, odd.start()) + 1
        raise IntentsError([Mistake(line, "this is not UTF-8")])
    return text
