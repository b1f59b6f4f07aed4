// The plan view: what would be done, how its commands end today, and Approve, Request changes, Cancel.
import type { Plan, PlanMessage, PlanSnapshot, PlanStep, RenderContext, Trial } from "../protocol";
import { diffBlock, h } from "./dom";
import { NO_KERNEL, button, opening, saying } from "./opening";
import "./plan.css";

const TYPED = "%plan approve, edit TEXT or cancel";

const ENDED: Readonly<Record<Trial, string>> = {
  fails: "fails today",
  passes: "passes already",
  "cannot run": "cannot be run",
  "to be made": "cannot be run yet: a step makes what it lacks",
  "not run": "not run",
};
const BAD: ReadonlySet<Trial> = new Set<Trial>(["passes", "cannot run"]);
const TO_ANSWER: ReadonlySet<Plan["status"]> = new Set<Plan["status"]>(["proposed", "approved", "stopped"]);

function render(context: RenderContext): () => void {
  const link = context.model;
  let plan = ((link.get("snapshot") ?? {}) as PlanSnapshot).plan;
  let problem = "";
  let shown = "";
  const words = saying(
    (message) => link.send(message),
    (told) => {
      problem = told;
      view.redraw();
    },
  );
  const say = (message: Readonly<Record<string, unknown>>, what: string): void => words.say(message, what, TYPED);

  const state = h("span", { class: "muse-dim", "aria-live": "polite" });
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
  const view = opening<PlanMessage>(context, "plan", "Plan", [state], [body, actions], { hear, draw });
  link.send({ type: "plan" });
  view.redraw();

  function hear(message: PlanMessage): void {
    view.connected = true;
    words.taken();
    if (message.type === "refused") problem = message.problem;
    else if (message.type === "plan") {
      if (JSON.stringify(message.plan) !== JSON.stringify(plan)) problem = "";
      plan = message.plan;
    }
    view.redraw();
  }

  function draw(): void {
    const lost = view.lost();
    const sent = words.sent();
    view.notice(lost ? NO_KERNEL : problem || (sent ? `${sent} sent` : ""));
    if (!plan) return;
    view.title.textContent = `Plan: ${plan.document?.goal ?? plan.text}`;
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
    words.taken();
    view.close();
  };
}

export default { render };
