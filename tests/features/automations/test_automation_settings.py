"""The settings ``automations`` and ``llm``."""

import pytest

from relay.config.settings import Settings, with_setting
from relay.core.errors import ConfigError
from relay.features.automations.settings import AUTOMATIONS, LLM, AutomationSettings


def test_automations_and_their_model_are_checked() -> None:
    settings = with_setting(Settings(), "automations", {"agents": False})
    settings = with_setting(settings, "llm", {"command": "claude"})
    assert settings.of(AUTOMATIONS) == AutomationSettings(agents=False, workers=4)
    llm = settings.of(LLM)
    assert llm is not None and llm["command"] == ["claude"]
    for value, why in (
        ({"workers": 0}, "workers must be 1 or more, not 0"),
        ({"agents": "no"}, "agents must be True or False"),
        ({"worker": 1}, "unknown key 'worker' in automations"),
        (True, "must be a dictionary"),
    ):
        with pytest.raises(ConfigError, match=why):
            with_setting(Settings(), "automations", value)
