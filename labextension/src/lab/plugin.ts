// The extension for JupyterLab: a status-bar item, a side panel and commands for what waits for the user and for what
// reviews found, by way of the kernels' control channels, so that all of it works while a cell blocks and after a reload.
import { h } from "../views/dom";
import type { Standing } from "./control";
import { Crew } from "./crew";
import type { Application, KernelMessage, NotebookPanel, NotebookTracker, Palette, Shared, StatusBar } from "./jupyterlab";
import type { Proposal } from "./proposals";

const PANEL = "musecode-panel";
const CATEGORY = "Muse Code";
/** What the status of a kernel is when its process has ended. */
const ENDED = new Set(["restarting", "autorestarting", "terminating", "dead"]);

declare const PANEL_CSS: string;

export function makePlugin(shared: Shared): Record<string, unknown> {
  const { tokens, Widget } = shared;
  return {
    id: "musecode-jupyter:plugin",
    description: "Approvals and Stop for musecode-jupyter, also while a cell blocks",
    autoStart: true,
    requires: [tokens.tracker],
    optional: [tokens.palette, tokens.statusBar],
    activate: (app: Application, tracker: NotebookTracker, palette: Palette | null, statusBar: StatusBar | null) => {
      document.head.append(h("style", { "data-musecode": true }, PANEL_CSS));
      const crews = new Map<NotebookPanel, Crew>();

      const side = new Widget();
      side.id = PANEL;
      side.title.label = "Muse Code";
      side.title.caption = "Muse Code: what waits for you";
      side.addClass("muse-lab-panel");
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
        const settle = all.reduce((sum, crew) => sum + crew.settle, 0);
        const running = all.some((crew) => crew.running);
        const waits = [pending && `${pending} approval${pending === 1 ? " waits" : "s wait"}`, settle && `${settle} finding${settle === 1 ? "" : "s"} to settle`];
        nothing.hidden = all.length > 0;
        button.hidden = !pending && !settle && !running;
        button.textContent = waits.filter(Boolean).join(", ") || "agents at work";
        button.style.fontWeight = pending || settle ? "bold" : "normal";
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
          if (kind === "musecode_state") crewOf(panel)?.told(content as unknown as Standing);
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
        caption: "Questions of the agents, with Approve and Deny; findings of reviews",
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
