"""Recording at the start of a run: the file is made before the agent starts."""

from __future__ import annotations

from relay.app.start_door import StartFeature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.app.wrapped_run import Choices, RecordingChoice
    from relay.features.recording.recording import Recording


def feature(choices: Choices, cwd: str) -> RecordedStart | None:
    """The feature, where the person wants a recording."""
    wanted = choices.terminal.recording
    return None if wanted is None else RecordedStart(wanted)


class RecordedStart(StartFeature):
    """Makes the recording, and tells at the end what is missing in it."""

    def __init__(self, wanted: RecordingChoice) -> None:
        self._wanted = wanted
        self._recording: Recording | None = None
        self.keys = wanted.keys

    def descriptors(self) -> dict[str, int | None]:
        """The file, and where its recorder reports. Raises RelayError."""
        from relay.core.errors import UsageError
        from relay.features.recording.recording import Recording
        from relay.pump.run import outer_descriptors

        if outer_descriptors() is None:
            raise UsageError(
                "there is nothing to record: the agent's output goes to no terminal",
                hint="run it in a terminal, or without --record",
            )
        wanted = self._wanted
        self._recording = Recording(wanted.path, overwrite=wanted.overwrite, keys=wanted.keys)
        return {**self._recording.fds}

    def failed(self) -> None:
        if self._recording is not None:
            self._recording.close()

    def ended(self) -> str:
        return "" if self._recording is None else self._recording.finish()
