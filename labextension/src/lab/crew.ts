// What the page knows of one kernel's session, and its section of the panel: the views of the cells, with the control
// channel in place of a widget's comm.
import type { Approval, Model, RenderContext } from "../protocol";
import approvalsView from "../views/approvals";
import critiquesView from "../views/critiques";
import { h } from "../views/dom";
import { ask, type Done, type KernelState, type Standing } from "./control";
import type { Kernel, NotebookPanel } from "./jupyterlab";
import { apply, type Proposal } from "./proposals";

const NO_ANSWER: Done = { ok: false, problem: "The kernel does not answer. Type %approve, %deny or %muse stop in a cell or console." };
const GONE = "The kernel has ended. These are the findings as it said them last; %muse resume goes on with the session.";

interface View {
  render(context: RenderContext): () => void;
}

/** A view of the cells in a place of the panel. */
class Shown {
  readonly body = h("div");
  private readonly listeners = new Set<(message: unknown) => void>();
  private readonly close: () => void;

  constructor(view: View, snapshot: unknown, send: (content: Record<string, unknown>) => void) {
    const model: Model = {
      get: () => snapshot,
      on: (_name, callback) => void this.listeners.add(callback as unknown as (message: unknown) => void),
      off: (_name, callback) => void this.listeners.delete(callback as unknown as (message: unknown) => void),
      send: (content) => send(content as Record<string, unknown>),
    };
    this.close = view.render({ model, el: this.body });
  }

  say(message: unknown): void {
    for (const listener of this.listeners) listener(message);
  }

  dispose(): void {
    this.close();
    this.body.remove();
  }
}

export class Crew {
  readonly section: HTMLElement;
  pending: readonly Approval[] = [];
  running = false;
  /** How many findings a goal waits for. */
  settle = 0;
  private session: string | null = null;
  /** The event up to which the findings are known. */
  private findings = 0;
  /** When the newest that is known was so, on the kernel's clock. */
  private heard = 0;
  private readonly approvals: Shown;
  private critiques: Shown;
  private readonly title = h("h3", { class: "muse-lab-title" });
  private readonly button = h("button", { type: "button", class: "muse-button", title: "End the goal or the question" }, "Stop");
  private readonly problem = h("div", { class: "muse-notice", role: "alert", hidden: true });
  private asked = false;
  private again = false;
  private question = new AbortController();

  constructor(
    readonly panel: NotebookPanel,
    readonly kernel: Kernel,
    private readonly changed: () => void,
  ) {
    this.button.addEventListener("click", () => void this.stop());
    this.approvals = new Shown(approvalsView, { pending: [] }, (content) => this.send(content));
    this.critiques = this.noFindings();
    const head = h("header", { class: "muse muse-lab-head" }, this.title, this.button, this.problem);
    this.section = h("section", {}, head, this.approvals.body, this.critiques.body);
    this.named();
    this.take([], false);
  }

  /** Ask the kernel how it stands; once more afterwards if asked again meanwhile. */
  private async refresh(): Promise<void> {
    this.again = true;
    if (this.asked) return;
    this.asked = true;
    while (this.again) {
      this.again = false;
      const { signal } = (this.question = new AbortController());
      const since = this.findings;
      try {
        const state = await ask<KernelState>(this.kernel, { type: "state", document: this.panel.context.path, since }, signal);
        // An answer that came too late would take back what the kernel has said meanwhile, or speak of a process
        // that has ended.
        if (signal.aborted || state.at < this.heard) continue;
        this.heard = state.at;
        this.of(state.session);
        if (since !== this.findings) {
          this.again = true;
          continue;
        }
        this.settle = state.settle;
        this.take(state.pending, state.running);
        this.findings = state.findings.upto;
        this.critiques.say({ type: "findings", ...state.findings });
      } catch {
        // The kernel is gone, or the extension in it: it will say so itself if there is something to ask for.
      }
    }
    this.asked = false;
  }

  /** The kernel has said how things stand. */
  told(standing: Standing): void {
    if (standing.at < this.heard) return;
    this.heard = standing.at;
    this.of(standing.session);
    this.settle = standing.settle;
    if (!standing.pending) this.take([], standing.running);
    else this.changed();
    if (standing.pending || standing.running || standing.answer || standing.findings !== this.findings) void this.refresh();
    else this.giveUp();
  }

  /** The process behind the kernel has ended: nobody waits for an answer, and nothing runs. */
  ended(): void {
    this.giveUp();
    this.heard = 0;
    this.settle = 0;
    this.take([], false);
    this.tell({ ok: true });
    if (this.findings) this.critiques.say({ type: "gone", why: GONE });
  }

  /** The notebook may have another name. */
  named(): void {
    this.title.textContent = this.panel.context.path;
  }

  async stop(): Promise<void> {
    await this.demand({ type: "stop" });
  }

  async carryOut(proposal: Proposal): Promise<void> {
    const done = apply(this.panel, proposal);
    try {
      await ask(this.kernel, { type: "applied", proposal: proposal.proposal, ...done });
    } catch {
      // Nobody is there any more to be told.
    }
  }

  dispose(): void {
    this.giveUp();
    this.approvals.dispose();
    this.critiques.dispose();
    this.section.remove();
  }

  private send(content: Record<string, unknown>): void {
    // What a view asks for when it is made comes by itself: the kernel says when there is something.
    if (content["type"] === "answer" || content["type"] === "settle") void this.demand(content);
  }

  private async demand(content: Record<string, unknown>): Promise<void> {
    let done = NO_ANSWER;
    try {
      done = await ask<Done>(this.kernel, content);
    } catch {
      // The user is told.
    }
    this.tell(done);
    if (!done.ok && content["type"] === "settle") this.critiques.say({ type: "refused", number: content["number"], problem: done.problem });
    await this.refresh();
  }

  /** All is known, and there may be nobody left to answer: what waits for an answer would keep newer news waiting. */
  private giveUp(): void {
    this.again = false;
    this.question.abort();
  }

  /** This is about a session: findings of another one are not shown any more. */
  private of(session: string | null): void {
    if (session === this.session) return;
    this.session = session;
    this.findings = 0;
    const before = this.critiques;
    this.critiques = this.noFindings();
    before.body.replaceWith(this.critiques.body);
    before.dispose();
  }

  private noFindings(): Shown {
    const shown = new Shown(critiquesView, { findings: [] }, (content) => this.send(content));
    shown.say({ type: "findings", since: 0, upto: 0, findings: [] });
    return shown;
  }

  private take(pending: readonly Approval[], running: boolean): void {
    this.pending = pending;
    this.running = running;
    this.button.disabled = !running && !pending.length;
    this.approvals.say({ type: "approvals", pending });
    this.changed();
  }

  private tell(done: Done): void {
    this.problem.hidden = done.ok;
    this.problem.textContent = done.problem ?? "";
  }
}
