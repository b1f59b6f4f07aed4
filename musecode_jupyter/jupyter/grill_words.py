"""What `%grill` and its words do."""

from __future__ import annotations

from musecode_jupyter.jupyter.host import Host
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.grills import answer_finding, grill, grill_text
from musecode_jupyter.session.visible import visible_text

WORDS = ("accept", "reject", "answer", "show")
USAGE = (
    "%grill takes nothing, `show`, `accept N`, `reject N WHY` or `answer N TEXT`; it attacks the plan that there is."
)


def grill_word(host: Host, line: str) -> None:
    """Attack the newest plan, show what was found, or take what the user says of a finding."""
    word, number, text = [*line.split(maxsplit=2), "", "", ""][:3]
    session = host.opened()
    plan = session.newest_plan().number
    if not word:
        said = session.call(lambda core: grill(core, plan))
    elif word == "show" and not number:
        said = session.read(lambda core: grill_text(core, plan))
    elif word in WORDS and number.isdecimal():
        said = session.call(lambda core: answer_finding(core, int(number), word, text))
    else:
        raise UsageProblem(USAGE)
    print(visible_text(said))
