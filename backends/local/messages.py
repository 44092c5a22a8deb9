"""The messages of a chat, checked, as the model's chat template takes them: a role and a text each."""

from backends.local.errors import missing, unsupported, wrong_type, wrong_value

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def parse_messages(messages: object) -> tuple[dict[str, str], ...]:
    """The field `messages`. Raises RequestError."""
    if messages is None:
        raise missing("messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "a list")
    if not messages:
        raise wrong_value("messages", "a list with at least one message")
    return tuple(_message(message, f"messages[{i}]") for i, message in enumerate(messages))


def _message(message: object, param: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise wrong_type(param, "an object")
    role = message.get("role")
    if role is None:
        raise missing(f"{param}.role")
    if not isinstance(role, str):
        raise wrong_type(f"{param}.role", "a string")
    if role in ("tool", "function"):
        raise unsupported(f"{param}.role", f"The local engine has no tools: '{param}.role' cannot be '{role}'.")
    if role not in ROLES:
        raise wrong_value(f"{param}.role", "system, developer, user or assistant")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise unsupported(f"{param}.{name}")
    content = message.get("content")
    if content is None and role != "assistant":
        raise missing(f"{param}.content")
    return {"role": ROLES[role], "content": _content(content, f"{param}.content")}


def _content(content: object, param: str) -> str:
    """Text parts are joined by line ends."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(param, "a string or a list of text parts")
    texts = []
    for i, part in enumerate(content):
        if not isinstance(part, dict):
            raise wrong_type(f"{param}[{i}]", "an object")
        if part.get("type") != "text":
            raise unsupported(
                f"{param}[{i}].type", f"The local engine reads text only: '{param}[{i}].type' must be 'text'."
            )
        if not isinstance(part.get("text"), str):
            raise wrong_type(f"{param}[{i}].text", "a string")
        texts.append(part["text"])
    return "\n".join(texts)
