"""The field `response_format`: which JSON schema the answer must obey."""

import re

import msgspec

from backends.local.errors import missing, wrong_type, wrong_value

ANY_OBJECT = '{"type":"object"}'
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def parse_response_format(value: object) -> str | None:
    """The schema as JSON text; None where any text will do. Whether the schema can be obeyed shows later. Raises
    RequestError for a wrong shape."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_type("response_format", "an object")
    match value.get("type"):
        case None:
            raise missing("response_format.type")
        case "text":
            return None
        case "json_object":
            return ANY_OBJECT
        case "json_schema":
            return _schema(value.get("json_schema"), "response_format.json_schema")
    raise wrong_value("response_format.type", "text, json_object or json_schema")


def _schema(value: object, param: str) -> str:
    if value is None:
        raise missing(param)
    if not isinstance(value, dict):
        raise wrong_type(param, "an object")
    name, schema = value.get("name"), value.get("schema")
    if name is None:
        raise missing(f"{param}.name")
    if not isinstance(name, str):
        raise wrong_type(f"{param}.name", "a string")
    if not NAME.fullmatch(name):
        raise wrong_value(f"{param}.name", "at most 64 letters, digits, underscores and dashes")
    # The answer obeys the schema whether this is asked for or not.
    if not isinstance(value.get("strict"), bool | None):
        raise wrong_type(f"{param}.strict", "true or false")
    if schema is None:
        raise missing(f"{param}.schema")
    if not isinstance(schema, dict):
        raise wrong_type(f"{param}.schema", "an object")
    return msgspec.json.encode(schema).decode()
