// The plan view: what would be done, how its commands end today, and Approve, Request changes, Cancel.
import type { Plan, PlanMessage, PlanSnapshot, PlanStep, RenderContext, Trial } from "../protocol";
import { diffBlock, framed, h } from "./dom";
import "./plan.css";

/** After this many milliseconds without a word from the kernel the view says how to answer by text. */
const SILENCE = 4000;

const ENDED: Readonly<Record<Trial, string>> = {
  fails: "fails today",
  passes: "passes already",
  "cannot run": "cannot be run",
  "to be made": "cannot be run yet: a step makes what it lacks",
  "not run": "not run",
};
const BAD: ReadonlySet<Trial> = new Set<Trial>(["passes", "cannot run"]);
const TO_ANSWER: ReadonlySet<Plan["status"]> = new Set<Plan["status"]>(["proposed", "approved", "stopped"]);

function render({ model: link, el }: RenderContext): () => void {
  let plan = ((link.get("snapshot") ?? {}) as PlanSnapshot).plan;
  let connected = false;
  let waited = false;
  let problem = "";
  let sent = "";
  let timer: ReturnType<typeof setTimeout> | undefined;
  let shown = "";

  const title = h("span", { class: "muse-title" });
  const state = h("span", { class: "muse-dim", "aria-live": "polite" });
  const notice = h("div", { class: "muse-notice", role: "status", hidden: true });
  const body = h("div", { class: "muse-plan-body" });
  const wish = h("input", { type: "text", class: "muse-input", placeholder: "What is to be changed", "aria-label": "What is to be changed" });
  const approve = button("Approve", true, () => plan && say({ type: "approve", digest: plan.digest }, "Approval"));
  const change = button("Request changes", false, () => {
    if (!wish.value.trim() && !Object.keys(plan?.answers ?? {}).length) {
      wish.focus();
      return;
    }
    say({ type: "edit", text: wish.value.trim() }, "Request");
    wish.value = "";
  });
  const cancel = button("Cancel", false, () => say({ type: "cancel" }, "Cancel"));
  wish.addEventListener("keydown", (e) => {
    if (e.key === "Enter" && wish.value.trim()) change.click();
  });
  const actions = h("div", { class: "muse-actions" }, approve, wish, change, cancel);
  const root = h(
    "section",
    { class: "muse muse-plan", "aria-label": "Plan", "data-lm-suppress-shortcuts": "true" },
    h("header", { class: "muse-plan-head" }, title, h("span", { class: "muse-space" }), state),
    notice,
    body,
    actions,
  );
  el.append(root);
  const redraw = framed(draw);

  const onMessage = ((message: PlanMessage) => {
    connected = true;
    taken();
    if (message.type === "refused") problem = message.problem;
    else if (message.type === "plan") {
      if (JSON.stringify(message.plan) !== JSON.stringify(plan)) problem = "";
      plan = message.plan;
    }
    redraw();
  }) as (...args: never[]) => void;
  link.on("msg:custom", onMessage);
  const silence = setTimeout(() => {
    waited = true;
    redraw();
  }, SILENCE);
  link.send({ type: "plan" });
  redraw();

  function button(text: string, main: boolean, act: () => void): HTMLButtonElement {
    const made = h("button", { type: "button", class: `muse-button${main ? " muse-main" : ""}` }, text);
    made.addEventListener("click", act);
    return made;
  }

  function say(message: Readonly<Record<string, unknown>>, what: string): void {
    if (sent) return;
    sent = what;
    problem = "";
    timer = setTimeout(() => {
      taken();
      problem = `${what} was sent, but the kernel has not answered. Type it in a cell: %plan approve, edit TEXT or cancel.`;
      redraw();
    }, SILENCE);
    link.send(message);
    redraw();
  }

  function taken(): void {
    clearTimeout(timer);
    sent = "";
  }

  function draw(): void {
    const lost = waited && !connected;
    const told = lost ? "No running kernel behind this view: it shows what was stored with it." : problem || (sent ? `${sent} sent` : "");
    notice.hidden = !told;
    notice.textContent = told;
    if (!plan) return;
    title.textContent = `Plan: ${plan.document?.goal ?? plan.text}`;
    state.textContent = plan.version ? `version ${plan.version}, ${plan.status}` : plan.status;
    const idle = !lost && !sent;
    approve.disabled = !(idle && plan.document && plan.status !== "approved" && TO_ANSWER.has(plan.status));
    change.disabled = wish.disabled = !(idle && plan.document && TO_ANSWER.has(plan.status));
    cancel.disabled = !(idle && (plan.status === "writing" || TO_ANSWER.has(plan.status)));
    const key = JSON.stringify([plan, lost]);
    if (key === shown) return;
    shown = key;
    body.replaceChildren(...parts(plan, lost));
  }

  function parts(now: Plan, lost: boolean): HTMLElement[] {
    const part = (...children: (Node | string)[]): HTMLElement => h("div", { class: "muse-plan-part" }, ...children);
    const found = [part(h("span", { class: "muse-dim" }, now.standing))];
    const document = now.document;
    if (!document) return found;
    found.push(part(document.summary), ...document.steps.map((step, n) => part(...stepOf(step, n + 1))));
    if (document.denied) found.push(part(`The commands were not run: ${document.denied}`));
    document.questions.forEach((question, n) => found.push(part(...questionOf(now, question, n + 1, lost))));
    if (document.evidence.length) {
      const rows = document.evidence.map((each) =>
        h("li", {}, h("code", {}, each.path), each.read ? "" : h("b", { class: "muse-plan-bad" }, " never read"), `: ${each.shows}`),
      );
      found.push(part("Rests on", h("ul", {}, ...rows)));
    }
    if (document.ground.uncommitted.length) {
      const files = document.ground.uncommitted.join(", ");
      found.push(part("Read with changes that are not committed, without which work starts: ", h("code", {}, files)));
    }
    if (now.difference) {
      found.push(part(h("details", {}, h("summary", {}, `Changed since version ${now.version - 1}`), diffBlock(now.difference))));
    }
    return found;
  }

  function stepOf(step: PlanStep, place: number): (Node | string)[] {
    const rows = step.trials.map((trial) =>
      h(
        "li",
        {},
        "done when ",
        h("code", {}, trial.command),
        " passes: ",
        h("span", { class: BAD.has(trial.ended) ? "muse-plan-bad" : "muse-plan-fine" }, ENDED[trial.ended]),
      ),
    );
    const row = (name: string, text: string): void => void rows.push(h("li", {}, `${name} `, h("code", {}, text)));
    if (step.reads.length) row("reads", step.reads.join(", "));
    if (step.writes.length) row("writes", step.writes.join(", "));
    if (step.after.length) row("after", step.after.join(", "));
    rows.push(h("li", {}, `risk ${step.risk.level}: ${step.risk.why}`));
    if (step.tokens) rows.push(h("li", {}, `about ${step.tokens.toLocaleString("en-US")} tokens`));
    return [h("strong", {}, `${place}. ${step.name}`), h("span", { class: "muse-plan-goal" }, step.goal), h("ul", {}, ...rows)];
  }

  function questionOf(now: Plan, question: string, number: number, lost: boolean): (Node | string)[] {
    const said = now.answers[String(number)];
    if (said) return [`Question ${number}: ${question} `, h("b", {}, said)];
    const input = h("input", { type: "text", class: "muse-input", "aria-label": `Answer to question ${number}`, disabled: lost });
    input.addEventListener("keydown", (e) => {
      if (e.key === "Enter" && input.value.trim()) say({ type: "answer", question: number, text: input.value.trim() }, "Answer");
    });
    return [`Question ${number}: ${question} `, input];
  }

  return () => {
    clearTimeout(silence);
    clearTimeout(timer);
    redraw.cancel();
    link.off("msg:custom", onMessage);
    root.remove();
  };
}

export default { render };
