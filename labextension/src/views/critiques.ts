// The critiques view: findings of reviews by severity, each on the diff that it speaks of, with what it rests on.
import type { CritiquesMessage, Finding, FindingsSnapshot, RenderContext, Severity } from "../protocol";
import "./critiques.css";
import { h, uniqueId } from "./dom";
import { shapeSvg } from "./format";
import { numbered } from "./hunk";
import type { Group, PointGroup } from "./lanes";
import { NO_KERNEL, SILENCE, opening } from "./opening";

/** A question for missing findings that is not answered in this many milliseconds is asked again. */
const ASK_AGAIN = 1000;

const ORDER: readonly Severity[] = ["blocking", "major", "minor", "note"];
/** A shape of its own for each severity, beside its word: colour is never the only sign. */
const SHAPE: Readonly<Record<Severity, Group | PointGroup>> = { blocking: "error", major: "approval", minor: "merge", note: "other" };

function render(context: RenderContext): () => void {
  const link = context.model;
  const stored = (link.get("snapshot") ?? {}) as FindingsSnapshot;
  const findings = new Map<number, Finding>((stored.findings ?? []).map((f) => [f.number, f]));
  let last = 0;
  let why = NO_KERNEL;
  let asked = -1;
  let askedAt = 0;
  let openOnly = false;
  const cards = new Map<number, { card: HTMLElement; key: string }>();
  /** Words said here that the kernel has not confirmed, by finding, and whether it takes long. */
  const sent = new Map<number, { word: string; late: boolean; timer: ReturnType<typeof setTimeout> }>();
  /** Why the last word was not taken, by finding. */
  const refused = new Map<number, string>();

  const live = h("span", { class: "muse-sr", "aria-live": "polite" });
  const only = h("button", { type: "button", class: "muse-button", "aria-pressed": "false" }, "Open only");
  only.addEventListener("click", () => {
    openOnly = !openOnly;
    only.setAttribute("aria-pressed", String(openOnly));
    redraw();
  });
  const list = h("div", { class: "muse-findings" });
  const view = opening<CritiquesMessage>(context, "critiques", "Critiques", [only, live], [list], { hear, draw });
  const redraw = view.redraw;
  ask();
  redraw();

  function hear(message: CritiquesMessage): void {
    if (message.type === "refused") {
      taken(message.number);
      refused.set(message.number, message.problem);
      redraw();
    } else if (message.type === "gone") {
      view.connected = false;
      view.waited = true;
      why = message.why;
      for (const number of [...sent.keys()]) taken(number);
      redraw();
    }
    if (message.type !== "findings") return;
    view.connected = true;
    if (message.since > last) {
      ask();
      return;
    }
    asked = -1;
    last = Math.max(last, message.upto);
    const fresh: Finding[] = [];
    for (const finding of message.findings) {
      const old = findings.get(finding.number);
      if (old && old.seq > finding.seq) continue;
      if (!old) fresh.push(finding);
      if (old?.seq !== finding.seq) {
        taken(finding.number);
        refused.delete(finding.number);
      }
      findings.set(finding.number, finding);
    }
    if (fresh.length) live.textContent = fresh.map((f) => `Finding ${f.number}, ${f.severity}, at ${f.where}`).join(". ");
    redraw();
  }

  function taken(number: number): void {
    clearTimeout(sent.get(number)?.timer);
    sent.delete(number);
  }

  function ask(): void {
    const now = performance.now();
    if (asked === last && now - askedAt < ASK_AGAIN) return;
    asked = last;
    askedAt = now;
    link.send({ type: "since", seq: last });
  }

  function draw(): void {
    const all = [...findings.values()].sort(order);
    const open = all.filter((f) => f.state === "open").length;
    const blocking = all.filter((f) => f.blocks).length;
    const stops = blocking ? `, ${blocking} to be settled before the work lands` : ", nothing stops the work";
    view.title.textContent = all.length ? `${all.length} finding${all.length === 1 ? "" : "s"}: ${open} open${stops}` : "No findings";
    const lost = view.lost();
    view.notice(lost ? why : "");
    only.hidden = all.length === open;
    const shown = openOnly ? all.filter((f) => f.state === "open") : all;
    const alive = new Set(shown.map((f) => f.number));
    for (const [number, { card }] of cards) {
      if (alive.has(number)) continue;
      card.remove();
      cards.delete(number);
    }
    let next: Element | null = list.firstElementChild;
    for (const finding of shown) {
      const mine = sent.get(finding.number);
      const key = JSON.stringify([finding, mine?.word, mine?.late, refused.get(finding.number), lost]);
      let entry = cards.get(finding.number);
      if (entry?.key !== key) {
        const card = cardOf(finding, lost);
        if (entry) {
          keep(entry.card, card);
          if (next === entry.card) next = card;
          entry.card.replaceWith(card);
        }
        entry = { card, key };
        cards.set(finding.number, entry);
      }
      if (entry.card === next) next = next.nextElementSibling;
      else list.insertBefore(entry.card, next);
    }
  }

  /** What the user has opened, typed and focused stays as it is when a finding changes. */
  function keep(old: HTMLElement, card: HTMLElement): void {
    const was = old.querySelector("details");
    const now = card.querySelector("details");
    if (was?.dataset["touched"] && now) {
      now.open = was.open;
      now.dataset["touched"] = "true";
    }
    const typed = old.querySelector("input");
    const text = card.querySelector("input");
    if (typed && text) text.value = typed.value;
    const focused = document.activeElement;
    if (!focused || !old.contains(focused)) return;
    requestAnimationFrame(() => {
      const target = focused === typed && text ? text : card.querySelector("summary");
      target?.focus({ preventScroll: true });
    });
  }

  function cardOf(finding: Finding, lost: boolean): HTMLElement {
    const id = uniqueId("muse-finding");
    const summary = h(
      "summary",
      { id },
      shapeSvg(SHAPE[finding.severity]),
      h("span", { class: "muse-num muse-dim" }, `#${finding.number}`),
      h("strong", { class: `muse-severity muse-v-${finding.severity}` }, finding.severity),
      h("span", {}, finding.check),
      h("code", {}, finding.where),
      h("span", { class: `muse-finding-state muse-f-${finding.state}` }, stateText(finding)),
    );
    const details = h("details", { open: finding.state === "open" }, summary);
    summary.addEventListener("click", () => {
      details.dataset["touched"] = "true";
    });
    details.append(h("p", { class: "muse-finding-text" }, finding.text));
    if (finding.why) details.append(h("p", { class: "muse-dim muse-finding-why" }, finding.why));
    if (finding.hunk || finding.place.text) details.append(hunkBlock(finding));
    details.append(...evidence(finding));
    if (finding.suggestion) details.append(h("p", { class: "muse-finding-text" }, h("b", {}, "Suggested: "), finding.suggestion));
    details.append(h("p", { class: "muse-dim muse-finding-why" }, whose(finding)));
    if (finding.state === "open") details.append(actions(finding, lost));
    return h("article", { class: `muse-finding${finding.state === "open" ? "" : " muse-settled"}`, "aria-labelledby": id }, details);
  }

  function actions(finding: Finding, lost: boolean): HTMLElement {
    const said = sent.get(finding.number);
    if (said) {
      const how = `%muse critiques ${said.word} ${finding.number}${said.word === "answer" ? " TEXT" : ""}`;
      const state = said.late ? `${said.word} was sent, but the kernel has not answered. Type ${how} in a cell or console.` : `${said.word} sent`;
      return h("div", { class: "muse-actions", role: "status" }, state);
    }
    const text = h("input", { type: "text", class: "muse-input", placeholder: "Your words", "aria-label": `Your words on finding ${finding.number}` });
    const say = (word: string): void => {
      const words = text.value.trim();
      if (word === "answer" && !words) {
        hint.textContent = "An answer needs your words.";
        text.focus();
        return;
      }
      const timer = setTimeout(() => {
        const mine = sent.get(finding.number);
        if (mine) mine.late = true;
        redraw();
      }, SILENCE);
      sent.set(finding.number, { word, late: false, timer });
      refused.delete(finding.number);
      link.send({ type: "settle", number: finding.number, word, text: words });
      redraw();
    };
    const hint = h("span", { class: "muse-refused", role: "alert" }, refused.get(finding.number) ?? "");
    const button = (name: string, word: string, title: string): HTMLButtonElement => {
      const b = h("button", { type: "button", class: "muse-button", title, disabled: lost }, name);
      b.addEventListener("click", () => say(word));
      return b;
    };
    text.addEventListener("keydown", (e) => {
      if (e.key === "Enter") say("answer");
    });
    return h(
      "div",
      { class: "muse-actions" },
      text,
      button("Answer", "answer", "It stops nothing, for the reason that you give"),
      button("Accept", "accept", "It is to be done before the work lands"),
      button("Withdraw", "withdraw", "It is wrong, or not wanted"),
      hint,
    );
  }

  return () => {
    for (const { timer } of sent.values()) clearTimeout(timer);
    view.close();
  };
}

/** Open ones first, those that stop the work before the others, by severity, in the order in which they came. */
function order(a: Finding, b: Finding): number {
  return (
    Number(a.state !== "open") - Number(b.state !== "open") ||
    Number(b.blocks) - Number(a.blocks) ||
    ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity) ||
    a.number - b.number
  );
}

function stateText(finding: Finding): string {
  if (finding.state !== "open") return finding.said ? `${finding.state}: ${finding.said}` : finding.state;
  if (finding.accepted) return "accepted: to be done before the work lands";
  if (finding.blocks) return finding.merge === null ? "open: stops the landing" : `open: stops landing ${finding.merge}`;
  return finding.opinion ? "open: an opinion, stops nothing" : "open: stops nothing";
}

function whose(finding: Finding): string {
  const mechanical = finding.passes.length === 1 && finding.passes[0] === "mechanical";
  const by = finding.passes.length === 1 ? "the pass" : `${finding.passes.length} passes:`;
  const who = mechanical ? "Proven without a model" : `Raised by ${by} ${finding.passes.join(", ")}`;
  return `${who}; about ${finding.work}${finding.merge === null ? "" : `, merge ${finding.merge}`}.`;
}

function hunkBlock(finding: Finding): HTMLElement {
  const pre = h("pre", { class: "muse-code muse-diff muse-hunk", tabindex: 0, "aria-label": `Diff of ${finding.place.path}` });
  for (const row of numbered(finding.hunk, finding.place)) {
    const gutter = `${row.marked ? ">" : " "} ${row.before.padStart(row.width)} ${row.after.padStart(row.width)} `;
    pre.append(
      h("span", { class: `muse-d-${row.sort}${row.marked ? " muse-d-place" : ""}` }, h("i", { class: "muse-gutter" }, gutter), `${row.text}\n`),
    );
  }
  return pre;
}

/** What it rests on, but for what the hunk shows anyway. */
function evidence(finding: Finding): HTMLElement[] {
  const shown = (text: string): boolean => text.trim() === finding.place.text.trim() || finding.hunk.includes(text);
  return finding.evidence
    .filter((each) => each.text && (each.form === "command" || !shown(each.text)))
    .map((each) => {
      const source = each.form === "command" ? `Command ${each.call} printed` : `${each.path}${each.start ? `:${each.start}` : ""}`;
      return h("div", { class: "muse-evidence" }, h("span", { class: "muse-dim" }, source), h("pre", { class: "muse-code", tabindex: 0 }, each.text));
    });
}

export default { render };
