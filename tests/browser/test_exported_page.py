"""The exported page in a real Chromium, as a file: it loads nothing, shows events and detail, in both themes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fixtures.written_log import Entry, write_log
from lab import chromium_page, find_chromium
from synthetic import goal_run

from musecode_jupyter.log.blobs import digest_of
from musecode_jupyter.session.export import export

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one or set MUSECODE_CHROMIUM"),
]
EVIL = "</script><script>document.title='broken out'</script><img src=x onerror=\"document.title='broken out'\">"
SIDES = {"before": b"if count >= free:\n", "after": b"if count > free:\n"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of a goal, with a file that changed and a text that tries to leave its place and run."""
    folder = tmp_path_factory.mktemp("exported") / "20260302-093000-aaaa"
    sides = {name: digest_of(content).digest for name, content in SIDES.items()}
    write_log(
        folder,
        [
            *(Entry(event.kind, event.data, event.agent, cause=event.cause) for event in goal_run().events),
            Entry("file.changed", {"worktree": 4, "path": "stock.py", **sides}, cause=(3,), blobs=SIDES),
            Entry("user.message", {"text": EVIL, "to": "lead"}, "user"),
        ],
    )
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Page]:
    out = folder.parent / "session.html"
    export(folder, "html", str(out))
    with chromium_page(1400, 900) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(out.as_uri())
        page.locator(".muse-row").first.wait_for()
        page.asked = asked  # type: ignore[attr-defined]
        yield page
        assert page.script_errors == []  # type: ignore[attr-defined]


def shot(page: Page, name: str) -> None:
    folder = os.environ.get("BROWSER_SHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_search_leads_to_an_event_with_its_diff_and_causes(page: Page, folder: Path) -> None:
    assert folder.name in page.locator(".muse-page-head").inner_text()
    page.get_by_label("Filter events by text").fill("file.changed stock.py")
    page.locator(".muse-row").last.click()
    detail = page.locator(".muse-detail")
    detail.locator(".muse-d-add", has_text="+if count > free:").wait_for()
    assert detail.locator(".muse-link", has_text="goal.set").is_visible()
    shot(page, "exported")
    page.get_by_label("Filter events by text").fill("")


def test_what_stands_in_a_text_stays_a_text(page: Page, folder: Path) -> None:
    page.get_by_label("Filter events by text").fill("broken out")
    page.locator(".muse-row", has_text="user.message").click()
    assert EVIL in page.locator(".muse-detail").inner_text()
    assert page.title() == folder.name


def test_there_is_nothing_of_a_kernel_in_it(page: Page) -> None:
    """No Stop, nothing to follow, and running bars do not grow."""
    assert not page.locator(".muse-stop").is_visible()
    assert not page.get_by_role("button", name="Keep the newest events in sight").is_visible()
    assert page.locator(".muse-state").inner_text() == "unfinished"
    assert "running" not in page.locator(".muse-header").inner_text()
    assert page.locator(".muse-notice").count() == 1
    assert not page.locator(".muse-notice").is_visible()


def test_both_themes_fill_the_window_and_can_be_read(page: Page) -> None:
    seen = []
    for _ in range(2):
        seen.append(page.evaluate("getComputedStyle(document.querySelector('.muse-row')).color"))
        seen.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.locator(".muse-page-theme").click()
    assert seen[0] != seen[2]
    assert seen[1] != seen[3]
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollHeight <= window.innerHeight")


def test_it_asked_for_nothing_but_itself(page: Page) -> None:
    assert page.asked == [page.url]  # type: ignore[attr-defined]


def test_the_policy_lets_no_other_script_run(page: Page, folder: Path) -> None:
    """Whether the policy is in force is tried from inside: a script is added, and a picture from elsewhere."""
    page.evaluate(
        """() => {
            window.blocked = [];
            document.addEventListener("securitypolicyviolation", (e) => window.blocked.push(e.effectiveDirective));
            const script = document.createElement("script");
            script.textContent = "document.title = 'broken out'";
            const picture = new Image();
            picture.src = "http://127.0.0.1:9/x.png";
            document.body.append(script, picture);
        }"""
    )
    page.wait_for_function("window.blocked.length >= 2")
    assert sorted(page.evaluate("window.blocked")) == ["img-src", "script-src-elem"]
    assert page.title() == folder.name
