"""docs/configuration.md has a row for every setting, with its default and whether it does something yet."""

import re
from pathlib import Path

from gateway.config.not_yet import NOT_YET

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def rows() -> dict[tuple[str, str], str]:
    """(path, default) -> the whole row."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 4:
            assert all(cells), f"an empty cell: {line}"
            found[cells[0].strip("`"), cells[3].strip("`")] = line
    return found


def test_every_setting_has_a_row_with_its_default(settings) -> None:
    assert set(rows()) == {(setting.path, setting.default) for setting in settings}


def test_rows_say_not_yet_where_the_table_does() -> None:
    patterns = [re.escape(path).replace(r"\*", "[^.]+") + r"(\..*)?" for path in NOT_YET]
    for (path, _), row in rows().items():
        steps = path.replace("[]", ".0")
        assert ("**Not yet**" in row) == any(re.fullmatch(pattern, steps) for pattern in patterns), row


def test_the_table_names_settings_that_exist(settings) -> None:
    paths = [setting.path.replace("[]", ".0").replace("<name>", "0") for setting in settings]
    for pattern in NOT_YET:
        regex = re.escape(pattern).replace(r"\*", "0") + r"(\..*)?"
        assert any(re.fullmatch(regex, path) for path in paths), pattern
