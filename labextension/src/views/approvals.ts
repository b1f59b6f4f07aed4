// The approvals view: what exactly will run, and the three answers to it.
import type { Approval, ApprovalsMessage, ApprovalsSnapshot, Decision, RenderContext } from "../protocol";
import "./approvals.css";
import { dataTable } from "./detail";
import { diffBlock, framed, h, uniqueId } from "./dom";
import { money, shapeSvg } from "./format";

/** After this many milliseconds without a word from the kernel the view says how to answer by text. */
const SILENCE = 4000;

function render({ model: link, el }: RenderContext): () => void {
  let approvals = ((link.get("snapshot") ?? {}) as ApprovalsSnapshot).pending ?? [];
  let connected = false;
  let waited = false;
  /** Answers given here that the kernel has not confirmed: approval -> decision, and whether it takes long. */
  const sent = new Map<number, { decision: Decision; late: boolean; timer: ReturnType<typeof setTimeout> }>();
  const cards = new Map<number, { card: HTMLElement; key: string }>();

  const title = h("span", { class: "muse-title" });
  const live = h("span", { class: "muse-sr", "aria-live": "assertive" });
  const notice = h("div", { class: "muse-notice", role: "status", hidden: true });
  const list = h("div", { class: "muse-cards" });
  const root = h(
    "section",
    { class: "muse muse-approvals", "aria-label": "Approvals", "data-lm-suppress-shortcuts": "true" },
    h("header", { class: "muse-approvals-head" }, shapeSvg("approval"), title, live),
    notice,
    list,
  );
  el.append(root);
  const redraw = framed(draw);

  const onMessage = ((message: ApprovalsMessage) => {
    if (message.type !== "approvals") return;
    connected = true;
    const known = new Set(approvals.filter((a) => a.state === "pending").map((a) => a.approval));
    const fresh = message.pending.filter((a) => a.state === "pending" && !known.has(a.approval));
    if (fresh.length) live.textContent = fresh.map((a) => `Approval ${a.approval} asked: ${a.action}`).join(". ");
    approvals = message.pending;
    for (const approval of approvals) {
      const mine = sent.get(approval.approval);
      if (mine && approval.state !== "pending") {
        clearTimeout(mine.timer);
        sent.delete(approval.approval);
      }
    }
    redraw();
  }) as (...args: never[]) => void;
  link.on("msg:custom", onMessage);
  const silence = setTimeout(() => {
    waited = true;
    redraw();
  }, SILENCE);
  link.send({ type: "approvals" });
  redraw();

  function answer(approval: Approval, decision: Decision, why: string): void {
    if (sent.has(approval.approval)) return;
    const timer = setTimeout(() => {
      const mine = sent.get(approval.approval);
      if (mine) mine.late = true;
      redraw();
    }, SILENCE);
    sent.set(approval.approval, { decision, late: false, timer });
    link.send({ type: "answer", approval: approval.approval, digest: approval.digest, decision, why });
    redraw();
  }

  function draw(): void {
    const waiting = approvals.filter((a) => a.state === "pending").length;
    title.textContent = waiting === 1 ? "1 approval waits for you" : waiting ? `${waiting} approvals wait for you` : "No approval waits";
    const lost = waited && !connected;
    notice.hidden = !lost;
    if (lost) notice.textContent = "No running kernel behind this view. Answer in a cell: %approve N or %deny N.";
    const alive = new Set<number>();
    for (const approval of approvals) {
      alive.add(approval.approval);
      const mine = sent.get(approval.approval);
      const key = JSON.stringify([approval, mine?.decision, mine?.late, lost]);
      const old = cards.get(approval.approval);
      if (old?.key === key) continue;
      const card = cardOf(approval, mine, lost);
      if (old) {
        const focused = old.card.contains(document.activeElement);
        const typed = old.card.querySelector("input");
        const reason = card.querySelector("input");
        const typing = typed !== null && typed === document.activeElement;
        old.card.replaceWith(card);
        if (reason && typed) reason.value = typed.value;
        if (focused) (typing && reason ? reason : card).focus({ preventScroll: true });
      } else list.append(card);
      cards.set(approval.approval, { card, key });
    }
    for (const [id, { card }] of cards) {
      if (alive.has(id)) continue;
      card.remove();
      cards.delete(id);
    }
  }

  function cardOf(approval: Approval, mine: { decision: Decision; late: boolean } | undefined, lost: boolean): HTMLElement {
    const id = uniqueId("muse-approval");
    const open = approval.state === "pending";
    const card = h(
      "article",
      { class: `muse-card${open ? "" : " muse-answered"}`, tabindex: -1, "aria-labelledby": id },
      h(
        "div",
        { class: "muse-card-head" },
        h("span", { class: "muse-num muse-dim" }, `#${approval.approval}`),
        h("strong", { id }, approval.action),
        h("span", { class: "muse-dim" }, approval.agent ? `asked by ${approval.agent}` : ""),
        h("span", { class: "muse-space" }),
        h("span", { class: `muse-card-state muse-s-${approval.state}` }, stateText(approval)),
      ),
    );
    if (!open) {
      if (approval.what) card.append(h("code", { class: "muse-was", title: approval.what }, approval.what));
      return card;
    }
    if (approval.what) card.append(h("pre", { class: "muse-code muse-what", tabindex: 0, "aria-label": "Exactly this will run" }, approval.what));
    if (approval.diff) card.append(diffBlock(approval.diff));
    const facts = h("div", { class: "muse-facts" });
    const fact = (name: string, value: string, mono = true): void => {
      if (value) facts.append(h("span", { class: "muse-fact" }, `${name} `, mono ? h("code", {}, value) : h("b", {}, value)));
    };
    fact("in", approval.cwd);
    fact("rule", approval.rule);
    fact("digest of all that is shown", approval.digest.slice(0, 12));
    if (approval.usd !== null) fact("spent so far", money(approval.usd), false);
    card.append(facts);
    if (Object.keys(approval.more).length) {
      card.append(h("details", { class: "muse-more", open: true }, h("summary", {}, approval.action === "land" ? "Evidence, and all else that the digest covers" : "Also covered by the digest"), dataTable(approval.more)));
    }
    card.append(actions(approval, mine, lost));
    return card;
  }

  function actions(approval: Approval, mine: { decision: Decision; late: boolean } | undefined, lost: boolean): HTMLElement {
    if (mine) {
      const word = mine.decision === "deny" ? "Deny" : "Approve";
      const text = mine.late
        ? `${word} was sent, but the kernel has not answered. Type %${word.toLowerCase()} ${approval.approval} in a cell or console.`
        : `${word} sent`;
      return h("div", { class: "muse-actions", role: "status" }, text);
    }
    const why = h("input", { type: "text", class: "muse-input", placeholder: "Reason for a denial (the agent reads it)", "aria-label": "Reason for a denial" });
    const button = (text: string, decision: Decision, main = false): HTMLButtonElement => {
      const b = h("button", { type: "button", class: `muse-button${main ? " muse-main" : ""}`, disabled: lost }, text);
      b.addEventListener("click", () => answer(approval, decision, decision === "deny" ? why.value.trim() : ""));
      return b;
    };
    why.addEventListener("keydown", (e) => {
      if (e.key === "Enter" && why.value.trim()) answer(approval, "deny", why.value.trim());
    });
    return h(
      "div",
      { class: "muse-actions" },
      button("Approve once", "approve", true),
      button("Approve for session", "approve_session"),
      button("Approve for workspace", "approve_workspace"),
      h("span", { class: "muse-deny" }, why, button("Deny", "deny")),
    );
  }

  return () => {
    clearTimeout(silence);
    for (const { timer } of sent.values()) clearTimeout(timer);
    redraw.cancel();
    link.off("msg:custom", onMessage);
    root.remove();
  };
}

const SCOPES: Readonly<Record<string, string>> = { session: " for this session", workspace: " for this workspace" };

function stateText(approval: Approval): string {
  const by = approval.by ? ` by ${approval.by}` : "";
  switch (approval.state) {
    case "pending":
      return "waits";
    case "granted":
      return `approved${SCOPES[approval.scope] ?? " once"}${by}`;
    case "denied":
      return `denied${by}${approval.why ? `: ${approval.why}` : ""}`;
    case "expired":
      return `expired${approval.why ? `: ${approval.why}` : ""}`;
  }
}

export default { render };
