// The attack view: what each angle came to, and each finding with what shows it, and Accept, Reject, Answer.
import type { Attack, AttackFinding, AttackMessage, AttackSnapshot, RenderContext } from "../protocol";
import { h, uniqueId } from "./dom";
import { shapeSvg } from "./format";
import "./grill.css";
import type { Group, PointGroup } from "./lanes";
import { NO_KERNEL, button, opening, saying } from "./opening";

/** A shape of its own for each severity, beside its word: colour is never the only sign. */
const SHAPE: Readonly<Record<AttackFinding["severity"], Group | PointGroup>> = { blocking: "error", major: "approval", minor: "merge" };
/** In the beginning of what an angle came to: that it could not be tried. */
const MISSING = /^(?:failed|not tried)/;

function render(context: RenderContext): () => void {
  const link = context.model;
  let attack = ((link.get("snapshot") ?? {}) as AttackSnapshot).grill;
  let problem = "";
  let shown = "";
  const words = saying(
    (message) => link.send(message),
    (told) => {
      problem = told;
      view.redraw();
    },
  );

  const state = h("span", { class: "muse-dim", "aria-live": "polite" });
  const stop = button("Stop", false, () => words.say({ type: "stop" }, "Stop", "%grill stop"));
  const resume = button("Go on", false, () => words.say({ type: "resume" }, "Go on", "%grill resume"));
  const angles = h("details", { class: "muse-grill-angles" });
  const list = h("div", { class: "muse-grill-body" });
  const view = opening<AttackMessage>(context, "grill", "Attack", [state, stop, resume], [list, angles], { hear, draw });
  link.send({ type: "grill" });
  view.redraw();

  function hear(message: AttackMessage): void {
    view.connected = true;
    words.taken();
    if (message.type === "refused") problem = message.problem;
    else if (message.type === "grill") {
      if (message.grill.seq !== attack?.seq) problem = "";
      attack = message.grill;
    }
    view.redraw();
  }

  function draw(): void {
    const lost = view.lost();
    const sent = words.sent();
    view.notice(lost ? NO_KERNEL : problem || (sent ? `${sent} sent` : ""));
    if (!attack) return;
    const now = attack;
    const open = now.findings.filter((each) => each.state === "open").length;
    const running = now.status === "running";
    const many = `${now.findings.length} finding${now.findings.length === 1 ? "" : "s"}`;
    view.title.textContent = `Attack on ${now.title}: ${many}, ${open} open`;
    state.textContent = running ? `under way, ${Object.keys(now.angles).length} angles tried` : now.status;
    stop.hidden = !running;
    resume.hidden = running || !(now.status === "stopped" || Object.values(now.angles).some((came) => MISSING.test(came)));
    stop.disabled = resume.disabled = lost || !!sent;
    const key = JSON.stringify([now, lost, sent]);
    if (key === shown) return;
    shown = key;
    const focused = document.activeElement;
    const kept = new Map<string, string>();
    for (const input of list.querySelectorAll("input")) kept.set(input.id, input.value);
    const told = now.standing ? [h("div", { class: "muse-grill-part muse-dim" }, now.standing)] : [];
    const none = now.status === "ended" && !now.findings.length;
    const rows = now.findings.map((each) => cardOf(each, now, lost || !!sent));
    list.replaceChildren(...told, ...rows, ...(none ? [h("div", { class: "muse-grill-part" }, "Nothing was found.")] : []));
    for (const input of list.querySelectorAll("input")) {
      input.value = kept.get(input.id) ?? "";
      if (focused instanceof HTMLElement && focused.id && focused.id === input.id) input.focus({ preventScroll: true });
    }
    const came = Object.entries(now.angles).map(([angle, text]) => h("li", {}, h("b", {}, angle), `: ${text}`));
    angles.replaceChildren(h("summary", {}, `${came.length} angles`), h("ul", {}, ...came));
    angles.hidden = !came.length;
  }

  function cardOf(each: AttackFinding, now: Attack, busy: boolean): HTMLElement {
    const id = uniqueId("muse-grill-finding");
    const asked = now.asked?.finding === each.number;
    const settled = each.state !== "open" && each.state !== "accepted";
    const head = h(
      "div",
      { id, class: "muse-grill-line" },
      shapeSvg(each.opinion ? "other" : SHAPE[each.severity]),
      h("span", { class: "muse-num muse-dim" }, `#${each.number}`),
      h("strong", { class: `muse-grill-${each.opinion ? "opinion" : each.severity}` }, each.opinion ? "opinion" : each.severity),
      h("span", {}, each.angles.join(", ")),
      h("code", {}, each.place),
      h("span", { class: "muse-grill-state" }, stateText(each, asked)),
    );
    const parts: Node[] = [head, h("p", {}, each.text)];
    if (!settled) {
      parts.push(h("p", { class: "muse-dim" }, each.proof));
      if (each.change) parts.push(h("p", {}, h("b", {}, "Instead: "), each.change));
      if (each.question) parts.push(h("p", {}, h("b", {}, "For you to decide: "), each.question));
    }
    if (each.state === "open") parts.push(actions(each, busy));
    const mark = `${settled ? " muse-settled" : ""}${asked ? " muse-grill-asked" : ""}`;
    return h("article", { class: `muse-grill-part${mark}`, "aria-labelledby": id }, ...parts);
  }

  function actions(each: AttackFinding, busy: boolean): HTMLElement {
    const label = `Your words on finding ${each.number}`;
    const id = `muse-grill-words-${each.number}`;
    const text = h("input", { type: "text", class: "muse-input", placeholder: "Your words", "aria-label": label, id, disabled: busy });
    const settle = (word: string, name: string): void => {
      const said = text.value.trim();
      if (word === "answer" && !said) {
        text.focus();
        return;
      }
      if (words.sent()) return;
      text.value = "";
      words.say({ type: "settle", number: each.number, word, text: said }, name, `%grill ${word} ${each.number}`);
    };
    text.addEventListener("keydown", (e) => {
      if (e.key === "Enter") settle("answer", "Answer");
    });
    const made = [
      button("Accept", false, () => settle("accept", "Accept")),
      button("Reject", false, () => settle("reject", "Reject")),
      button("Answer", false, () => settle("answer", "Answer")),
    ];
    for (const b of made) b.disabled = busy;
    return h("div", { class: "muse-actions" }, text, ...made);
  }

  return () => {
    words.taken();
    view.close();
  };
}

function stateText(each: AttackFinding, asked: boolean): string {
  if (each.state !== "open") return each.said ? `${each.state}: ${each.said}` : each.state;
  const stands = each.blocks ? "open: to be settled first" : each.opinion ? "open: stops nothing" : "open";
  return asked ? `asked now; ${stands}` : stands;
}

export default { render };
