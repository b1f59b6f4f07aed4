// The extension for JupyterLab: a status-bar item, a side panel and commands for the questions that wait, by way of the
// kernels' control channels, so that Approve, Deny and Stop work while a cell blocks and after a page reload.
import type { Approval, Model } from "../protocol";
import approvalsView from "../views/approvals";
import { h } from "../views/dom";
import { ask, type Done, type KernelState } from "./control";
import type { Application, Kernel, KernelMessage, NotebookPanel, NotebookTracker, Palette, Shared, StatusBar } from "./jupyterlab";
import { apply, type Proposal } from "./proposals";

const PANEL = "musecode-panel";
const CATEGORY = "Muse Code";
/** What the status of a kernel is when its process has ended. */
const ENDED = new Set(["restarting", "autorestarting", "terminating", "dead"]);
const NO_ANSWER: Done = { ok: false, problem: "The kernel does not answer. Type %approve, %deny or %muse stop in a cell or console." };

declare const APPROVALS_CSS: string;

type Listener = (message: unknown) => void;

/** One kernel with the extension: what it last said, and its section of the panel. */
class Crew {
  readonly section: HTMLElement;
  pending: readonly Approval[] = [];
  running = false;
  private readonly listeners = new Set<Listener>();
  private readonly title = h("h3", { class: "muse-lab-title" });
  private readonly button = h("button", { type: "button", class: "muse-button", title: "End the goal or the question" }, "Stop");
  private readonly problem = h("div", { class: "muse-notice", role: "alert", hidden: true });
  private asked = false;
  private again = false;
  private question = new AbortController();
  private readonly close: () => void;

  constructor(
    readonly panel: NotebookPanel,
    readonly kernel: Kernel,
    private readonly changed: () => void,
  ) {
    const body = h("div");
    this.button.addEventListener("click", () => void this.stop());
    this.section = h("section", {}, this.title, this.button, this.problem, body);
    this.named();
    this.take([], false);
    // The view of the cells, with the control channel in place of the widget's comm.
    const model: Model = {
      get: () => ({ pending: this.pending }),
      on: (_name, callback) => void this.listeners.add(callback as unknown as Listener),
      off: (_name, callback) => void this.listeners.delete(callback as unknown as Listener),
      send: (content) => void this.send(content as Record<string, unknown>),
    };
    this.close = approvalsView.render({ model, el: body });
  }

  /** Ask the kernel how it stands; once more afterwards if asked again meanwhile. */
  async refresh(): Promise<void> {
    this.again = true;
    if (this.asked) return;
    this.asked = true;
    while (this.again) {
      this.again = false;
      const { signal } = (this.question = new AbortController());
      try {
        const state = await ask<KernelState>(this.kernel, { type: "state", document: this.panel.context.path }, signal);
        // An answer that came too late would take back what the kernel has said meanwhile, or speak of a process
        // that has ended.
        if (!this.again && !signal.aborted) this.take(state.pending, state.running);
      } catch {
        // The kernel is gone, or the extension in it: it will say so itself if there is something to ask for.
      }
    }
    this.asked = false;
  }

  /** The kernel has said how many questions wait, whether something runs, and whether it wants to hear of the page. */
  told(pending: unknown, running: unknown, answer: unknown): void {
    if (pending || running || answer) {
      if (!pending) this.take([], running === true);
      void this.refresh();
    } else this.nothing();
  }

  /** The process behind the kernel has ended: nobody waits for an answer, and nothing runs. */
  ended(): void {
    this.nothing();
    this.tell({ ok: true });
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
    this.close();
    this.section.remove();
  }

  private async send(content: Record<string, unknown>): Promise<void> {
    if (content["type"] === "answer") await this.demand(content);
    else await this.refresh();
  }

  private async demand(content: Record<string, unknown>): Promise<void> {
    try {
      this.tell(await ask<Done>(this.kernel, content));
    } catch {
      this.tell(NO_ANSWER);
    }
    await this.refresh();
  }

  /** All is known, and there may be nobody left to answer: what waits for an answer would keep newer news waiting. */
  private nothing(): void {
    this.again = false;
    this.question.abort();
    this.take([], false);
  }

  private take(pending: readonly Approval[], running: boolean): void {
    this.pending = pending;
    this.running = running;
    this.button.disabled = !running && !pending.length;
    for (const listener of this.listeners) listener({ type: "approvals", pending });
    this.changed();
  }

  private tell(done: Done): void {
    this.problem.hidden = done.ok;
    this.problem.textContent = done.problem ?? "";
  }
}

export function makePlugin(shared: Shared): Record<string, unknown> {
  const { tokens, Widget } = shared;
  return {
    id: "musecode-jupyter:plugin",
    description: "Approvals and Stop for musecode-jupyter, also while a cell blocks",
    autoStart: true,
    requires: [tokens.tracker],
    optional: [tokens.palette, tokens.statusBar],
    activate: (app: Application, tracker: NotebookTracker, palette: Palette | null, statusBar: StatusBar | null) => {
      document.head.append(h("style", { "data-musecode": true }, APPROVALS_CSS));
      const crews = new Map<NotebookPanel, Crew>();

      const side = new Widget();
      side.id = PANEL;
      side.title.label = "Muse Code";
      side.title.caption = "Muse Code: what waits for you";
      side.addClass("muse-lab-panel");
      Object.assign(side.node.style, { overflow: "auto", padding: "8px", background: "var(--jp-layout-color1)" });
      const nothing = h("p", {}, "No kernel with a running session. %goal and %muse ask begin one.");
      side.node.append(nothing);
      app.shell.add(side, "right", { rank: 900 });

      const button = h("button", { type: "button", class: "muse-lab-status", hidden: true, title: "Show what waits for you" });
      Object.assign(button.style, { border: "none", background: "none", color: "inherit", font: "inherit", cursor: "pointer" });
      const status = new Widget({ node: button });
      button.addEventListener("click", () => app.shell.activateById(PANEL));
      statusBar?.registerStatusItem("musecode-jupyter:status", { item: status, align: "left", rank: 900 });

      const draw = (): void => {
        const all = [...crews.values()];
        const pending = all.reduce((sum, crew) => sum + crew.pending.length, 0);
        const running = all.some((crew) => crew.running);
        nothing.hidden = all.length > 0;
        button.hidden = !pending && !running;
        button.textContent = pending === 1 ? "1 approval waits" : pending ? `${pending} approvals wait` : "agents at work";
        button.style.fontWeight = pending ? "bold" : "normal";
      };

      const forget = (panel: NotebookPanel): void => {
        crews.get(panel)?.dispose();
        crews.delete(panel);
        draw();
      };

      const crewOf = (panel: NotebookPanel): Crew | null => {
        const kernel = panel.sessionContext.session?.kernel;
        if (!kernel) return null;
        const known = crews.get(panel);
        if (known?.kernel === kernel) return known;
        known?.dispose();
        const crew = new Crew(panel, kernel, draw);
        crews.set(panel, crew);
        side.node.append(crew.section);
        return crew;
      };

      const watch = (panel: NotebookPanel): void => {
        panel.sessionContext.iopubMessage.connect((_context, message: KernelMessage) => {
          const kind = message.header.msg_type;
          const { content } = message;
          if (kind === "musecode_state") crewOf(panel)?.told(content["pending"], content["running"], content["answer"]);
          else if (kind === "musecode_proposal") void crewOf(panel)?.carryOut(content as unknown as Proposal);
        });
        panel.sessionContext.kernelChanged.connect(() => forget(panel));
        panel.sessionContext.statusChanged.connect((_context, status) => {
          if (ENDED.has(status)) crews.get(panel)?.ended();
        });
        panel.context.pathChanged.connect(() => crews.get(panel)?.named());
        panel.disposed.connect(() => forget(panel));
      };
      tracker.forEach(watch);
      tracker.widgetAdded.connect((_tracker, panel) => watch(panel));

      app.commands.addCommand("musecode:show", {
        label: "Show what waits for you",
        caption: "Questions of the agents, with Approve and Deny",
        execute: () => app.shell.activateById(PANEL),
      });
      app.commands.addCommand("musecode:stop", {
        label: "Stop what runs for this notebook: the goal or the question",
        execute: async () => {
          const panel = tracker.currentWidget;
          if (panel) await crews.get(panel)?.stop();
        },
      });
      for (const command of ["musecode:show", "musecode:stop"]) palette?.addItem({ command, category: CATEGORY });
      draw();
    },
  };
}
