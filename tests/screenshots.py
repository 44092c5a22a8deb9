"""The pictures of the dashboard in docs/images: `python -m tests.screenshots`. With a directory as argument pictures of
every view in both sizes and both themes, to look at."""

import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from tests.support.browser import PHONE, Dashboard, chromium, dashboard
from tests.support.demo import NOW, demo
from tests.support.gateway import ADMIN, Running

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
DESKTOP = {"width": 1280, "height": 860}
SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": DESKTOP, "device_scale_factor": 1.25},
    "phone": {"viewport": PHONE, "device_scale_factor": 1.5, "is_mobile": True, "has_touch": True},
}
Act = Callable[[Dashboard, str], None]


def requests(it: Dashboard, id: str) -> None:
    it.go("#/requests")
    it.at("request-row").first.wait_for()


def opened(it: Dashboard, id: str) -> None:
    it.go(f"#/requests/{id}")
    it.opened()


def entries(it: Dashboard, id: str) -> None:
    it.go("#/entries")
    it.at("entry-row").first.wait_for()


def overview(it: Dashboard, id: str) -> None:
    it.page.locator(".overview canvas").first.wait_for()


def panels(it: Dashboard, id: str) -> None:
    it.go("#/overview")
    overview(it, id)
    it.run("document.querySelector('section[aria-label=Latency]').scrollIntoView({block: 'start'}); scrollBy(0, -72)")


VIEWS: dict[str, Act] = {
    **{"dashboard": overview, "panels": panels, "requests": requests},
    **{"decision": opened, "entries": entries},
}
KEPT = (
    *("dashboard-desktop-light", "dashboard-desktop-dark", "dashboard-phone-light", "dashboard-phone-dark"),
    *("panels-desktop-light", "requests-desktop-light", "requests-phone-dark"),
    *("decision-desktop-light", "decision-phone-dark", "entries-desktop-dark"),
)
"""Those in the documentation; with a directory as argument all of them are made."""


def speaking(gw: Running) -> str:
    """The latest request that was refused by what it means: the decision with most to say."""
    found = gw.admin("GET", "/admin/decisions?limit=1000&outcome=miss").json()["decisions"]
    refused = [d for d in found if any(t["tier"] == "semantic" and t.get("why") == "number" for t in d["tiers"])]
    return str((refused or found)[0]["id"])


def take(browser: Browser, gw: Running, folder: Path, kept: Container[str] | None) -> None:
    id = speaking(gw)
    for size, options in SIZES.items():
        for theme in ("light", "dark"):
            with dashboard(browser, gw, key=None, color_scheme=theme, **options) as it:
                it.page.clock.set_fixed_time(NOW)
                it.sign_in(ADMIN)
                for view, act in VIEWS.items():
                    name = f"{view}-{size}-{theme}"
                    if kept is not None and name not in kept:
                        continue
                    act(it, id)
                    it.page.mouse.move(0, 0)
                    it.page.screenshot(path=folder / f"{name}.png", animations="disabled")


def main() -> None:
    folder, kept = (Path(sys.argv[1]), None) if sys.argv[1:] else (IMAGES, KEPT)
    folder.mkdir(parents=True, exist_ok=True)
    with demo() as (gw, _), chromium() as browser:
        take(browser, gw, folder, kept)


if __name__ == "__main__":
    main()
