"""What is asked of a model, in the hooks' form and in that of its service. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.core.plain import shown
from relay.hooks.hook_types import ToolMode
from relay.hooks.utterances import TranslationError, mapping, rewritten, said, sequence

#: Where the conversation stands: Gemini; OpenAI and Anthropic; OpenAI's responses.
_LISTS = ("contents", "messages", "input")
#: The hooks' name of a setting, and what it is called where there is no ``config``.
_SETTINGS = {
    "temperature": ("temperature",),
    "maxOutputTokens": ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    "topP": ("top_p",),
    "topK": ("top_k",),
    "stopSequences": ("stop_sequences", "stop"),
    "candidateCount": ("n",),
    "presencePenalty": ("presence_penalty",),
    "frequencyPenalty": ("frequency_penalty",),
}
_CHOICES = {"auto": ToolMode.AUTO, "none": ToolMode.NONE}  # any other word demands a call
_NAME = "llm_request"


def request_to_hook(request: Mapping[str, Any]) -> dict[str, Any]:
    """``request`` in the hooks' form. Raises TranslationError."""
    model = request.get("model")
    if model is not None and not isinstance(model, str):
        raise TranslationError(f"the model in {_NAME} is {shown(model)}, not a text")
    spoken = [said(entry, _NAME) for entry in _entries(request)]
    hook: dict[str, Any] = {
        "model": model or "",
        "messages": [{"role": one[0], "content": one[1]} for one in spoken if one is not None],
    }
    config = _config(request)
    if config:
        hook["config"] = config
    tools = _tools(request)
    if tools:
        hook["toolConfig"] = tools
    return hook


def request_from_hook(hook: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with what ``hook``, in the hooks' form, says otherwise. Raises TranslationError."""
    before = request_to_hook(base)
    new = dict(base)
    if hook.get("model") not in (None, before["model"]):
        if not isinstance(hook["model"], str):
            raise TranslationError(f"the model in {_NAME} is {shown(hook['model'])}, not a text")
        new["model"] = hook["model"]
    if hook.get("messages") not in (None, before["messages"]):
        _set_messages(new, base, hook["messages"])
    if hook.get("config") is not None:
        _set_config(new, mapping(hook["config"], f"the config in {_NAME}"), before)
    if hook.get("toolConfig") not in (None, before.get("toolConfig")):
        _set_tools(new, mapping(hook["toolConfig"], f"the toolConfig in {_NAME}"))
    return new


def _list_key(request: Mapping[str, Any]) -> str:
    return next((key for key in _LISTS if request.get(key) is not None), "messages")


def _entries(request: Mapping[str, Any]) -> list[Any]:
    """The messages. One that stands alone, as a string or object, is a list of one."""
    key = _list_key(request)
    value = request.get(key)
    if isinstance(value, str | Mapping):
        return [value]
    return list(sequence(value, f"{key} in {_NAME}"))


def _like_gemini(request: Mapping[str, Any]) -> bool:
    """Whether settings stand in an object of their own, in Gemini's names."""
    return "contents" in request or any(
        isinstance(request.get(key), Mapping) for key in ("config", "generationConfig")
    )


def _set_messages(new: dict[str, Any], base: Mapping[str, Any], messages: object) -> None:
    wanted = []
    for message in sequence(messages, f"messages in {_NAME}"):
        one = said(message, f"messages in {_NAME}")
        if one is not None:
            wanted.append(one)
    key = _list_key(base)
    entries = _entries(base)
    roles = [entry.get("role") for entry in entries if isinstance(entry, Mapping)]
    model = "model" if "model" in roles or _like_gemini(base) else "assistant"

    def make(speaker: str, text: str) -> dict[str, Any]:
        if key == "contents":
            return {"role": speaker, "parts": [{"text": text}]}
        return {"role": model if speaker == "model" else speaker, "content": text}

    new[key] = rewritten(entries, wanted, _NAME, make)


def _config(request: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("config", "generationConfig"):
        config = request.get(key)
        if isinstance(config, Mapping):
            return {name: config[name] for name in _SETTINGS if config.get(name) is not None}
    if _like_gemini(request):
        return {}
    found = {}
    for name, spellings in _SETTINGS.items():
        value = next((request[word] for word in spellings if request.get(word) is not None), None)
        if value is not None:
            one_stop = name == "stopSequences" and isinstance(value, str)
            found[name] = [value] if one_stop else value
    return found


def _set_config(new: dict[str, Any], config: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    old = before.get("config", {})
    changed = {
        name: value
        for name, value in config.items()
        if value is not None and (name not in old or old[name] != value)
    }
    if not changed:
        return
    if _like_gemini(new):
        key = "generationConfig" if isinstance(new.get("generationConfig"), Mapping) else "config"
        new[key] = {**(new.get(key) or {}), **changed}
        return
    for name, value in changed.items():
        if name not in _SETTINGS:
            raise TranslationError(
                f"{_NAME} cannot be given the setting {shown(name)}",
                hint="known: " + ", ".join(_SETTINGS),
            )
        spellings = _SETTINGS[name]
        new[next((word for word in spellings if word in new), spellings[0])] = value


def _tools(request: Mapping[str, Any]) -> dict[str, Any]:
    config = _calling(request)
    if config is not None:
        known = ("mode", "allowedFunctionNames")
        return {key: config[key] for key in known if config.get(key) is not None}
    choice = request.get("tool_choice")
    if isinstance(choice, str):
        return {"mode": _CHOICES.get(choice, ToolMode.ANY).value}
    if not isinstance(choice, Mapping):
        return {}
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    mode = _CHOICES.get(str(choice.get("type")), ToolMode.ANY).value
    return {"mode": mode} | ({"allowedFunctionNames": [name]} if isinstance(name, str) else {})


def _calling(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Gemini's or the hooks' own object that says which tools may be called."""
    inner = request.get("config")
    for holder in (request, inner if isinstance(inner, Mapping) else {}):
        config = holder.get("toolConfig")
        if isinstance(config, Mapping):
            nested = config.get("functionCallingConfig")
            return nested if isinstance(nested, Mapping) else config
    return None


def _set_tools(new: dict[str, Any], tools: Mapping[str, Any]) -> None:
    said_ = {key: value for key, value in tools.items() if value is not None}
    names = said_.get("allowedFunctionNames")
    if names is not None and not all(
        isinstance(name, str) for name in sequence(names, f"allowedFunctionNames in {_NAME}")
    ):
        raise TranslationError(f"allowedFunctionNames in {_NAME} has what is no name")
    if "contents" in new:
        _set_gemini_tools(new, said_)
    elif _like_gemini(new) or "toolConfig" in new:
        new["toolConfig"] = {**(new.get("toolConfig") or {}), **said_}
    else:
        _set_choice(new, said_)


def _set_gemini_tools(new: dict[str, Any], tools: dict[str, Any]) -> None:
    config = new.get("config")
    holder = dict(config) if isinstance(config, Mapping) else {}
    outside = "toolConfig" in new
    old = new["toolConfig"] if outside else holder.get("toolConfig")
    old = old if isinstance(old, Mapping) else {}
    calling = old.get("functionCallingConfig")
    merged = {**(calling if isinstance(calling, Mapping) else {}), **tools}
    whole = {**old, "functionCallingConfig": merged}
    if outside:
        new["toolConfig"] = whole
    else:
        new["config"] = {**holder, "toolConfig": whole}


def _set_choice(new: dict[str, Any], tools: dict[str, Any]) -> None:
    """The services without a list of allowed names are given only the tools that are allowed."""
    mode = str(tools.get("mode", "")).upper()
    old = new.get("tool_choice")
    if mode:
        if mode not in [known.value for known in ToolMode]:
            raise TranslationError(f"the tools' mode in {_NAME} is {shown(tools['mode'])}")
        if isinstance(old, Mapping) and "function" not in old:
            new["tool_choice"] = {"type": mode.lower()}
        else:
            new["tool_choice"] = "required" if mode == ToolMode.ANY else mode.lower()
    names = tools.get("allowedFunctionNames")
    if names is not None:
        offered = sequence(new.get("tools"), f"tools in {_NAME}")
        new["tools"] = [tool for tool in offered if _tool_name(tool) in names]


def _tool_name(tool: object) -> object:
    if not isinstance(tool, Mapping):
        return None
    function = tool.get("function")
    return function.get("name") if isinstance(function, Mapping) else tool.get("name")
