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

declare const APPROVALS_CSS: string;

type Listener = (message: unknown) => void;

/** One kernel with the extension: what it last said, and its section of the panel. */
class Crew {
  readonly section: HTMLElement;
  pending: readonly Approval[] = [];
  running = false;
  private readonly listeners = new Set<Listener>();
  private readonly problem = h("div", { class: "muse-notice", role: "alert", hidden: true });
  private asked = false;
  private again = false;
  private readonly close: () => void;

  constructor(
    readonly panel: NotebookPanel,
    readonly kernel: Kernel,
    private readonly changed: () => void,
  ) {
    const body = h("div");
    const stop = h("button", { type: "button", class: "muse-button" }, "Stop");
    stop.addEventListener("click", () => void this.stop());
    this.section = h("section", {}, h("h3", { class: "muse-lab-title" }, panel.context.path), stop, this.problem, body);
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
    if (this.asked) {
      this.again = true;
      return;
    }
    this.asked = true;
    try {
      do {
        this.again = false;
        const state = await ask<KernelState>(this.kernel, { type: "state", document: this.panel.context.path });
        this.pending = state.pending;
        this.running = state.running;
        for (const listener of this.listeners) listener({ type: "approvals", pending: state.pending });
        this.changed();
      } while (this.again);
    } catch {
      // The kernel is gone or was restarted: it will say so itself if there is something to ask for.
      this.pending = [];
      this.running = false;
      this.changed();
    } finally {
      this.asked = false;
    }
  }

  async stop(): Promise<void> {
    this.tell(await ask<Done>(this.kernel, { type: "stop" }));
    await this.refresh();
  }

  async carryOut(proposal: Proposal): Promise<void> {
    const done = apply(this.panel, proposal);
    await ask(this.kernel, { type: "applied", proposal: proposal.proposal, ...done });
  }

  dispose(): void {
    this.close();
    this.section.remove();
  }

  private async send(content: Record<string, unknown>): Promise<void> {
    if (content["type"] === "answer") this.tell(await ask<Done>(this.kernel, content));
    await this.refresh();
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
          if (kind === "musecode_state") void crewOf(panel)?.refresh();
          else if (kind === "musecode_proposal") void crewOf(panel)?.carryOut(message.content as unknown as Proposal);
        });
        panel.sessionContext.kernelChanged.connect(() => forget(panel));
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
        label: "Stop the goal of this notebook",
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
