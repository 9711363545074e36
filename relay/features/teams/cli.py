"""What teams add to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

from relay.cli import output
from relay.cli.door import FileOfFeature
from relay.cli.init_verb import write
from relay.cli.parser import Options
from relay.config.trust import ConfigFile

#: ``relay.yaml``, for ``relay init --team``.
TEAM_TEMPLATE = """\
# The team of this project. `relay up` starts all agents, `relay down` ends them; both take names.
# It names commands, so relay asks you before it uses this file for the first time, and after
# every change.

agents:
  Alice:
    command: claude
    # What she is for: messages to @relay:builder reach her too.
    role: builder
    # What she should do. She gets this as a message from you when she has started.
    task: |
      Build what README.md asks for. When something can be looked at, tell @relay:Bob.
    # Channels: what is said to @relay:#build reaches all who have joined it. (Leave out the #.)
    channels: [build]
    # Her own git worktree, on the branch relay/Alice, so that she works undisturbed. It begins at
    # your current commit. `relay down` asks whether to merge, keep or discard it. You can also
    # write the name of a branch instead of true.
    worktree: true

  Bob:
    command: codex
    role: [reviewer, tester]
    channels: [build]
    worktree: true

  # More agents: a command (a text, or a list of its words) is all that one needs.
  # Carol: {command: bash, cwd: docs}
"""


def _init(args: Options) -> int:
    """``relay init --team``: a commented file of the team."""
    from relay.features.teams.team import TEAM_FILE  # which imports much

    path = write(TEAM_FILE, TEAM_TEMPLATE, args, "--team")
    if args.json:
        output.as_json({"path": path, "next": [f"relay trust {TEAM_FILE}", "relay up"]})
        return 0
    output.data(path)
    output.note("Edit it: who is in your team, and what each is to do. Then start all of them:")
    output.note("  relay up")
    return 0


INIT = {"team": ("write a commented relay.yaml", _init)}


def examine_file(file: ConfigFile) -> FileOfFeature | None:
    """What a team's file would run. Raises TeamError, ConfigError."""
    from relay.features.teams.team import examine_team, is_team_file, team_of

    if not is_team_file(file.path):
        return None
    runs, hashes = examine_team(file)
    return FileOfFeature(runs, hashes, {"agents": len(team_of(file).agents)})
