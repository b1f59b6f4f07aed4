// The exported page: the timeline over events that stand in the page itself; see session/export/html.py.
import type { DetailMessage, EventSummary, Header, Model, TimelineMessage } from "../protocol";
import { h } from "./dom";
import timeline from "./timeline";
import "./page.css";

type Listener = (message: TimelineMessage) => void;
type Detail = Omit<DetailMessage, "type">;

function blocks(name: string): HTMLElement[] {
  return [...document.querySelectorAll<HTMLElement>(`script.muse-page-${name}`)];
}

function parsed<T>(block: HTMLElement): T[] {
  return JSON.parse(block.textContent ?? "[]") as T[];
}

/** The data of one event; its block is parsed when it is first asked for, and only the newest is kept. */
class Details {
  private readonly all = blocks("details");
  private open = -1;
  private details: Detail[] = [];

  get(seq: number): Detail | undefined {
    const at = this.all.findIndex((block) => {
      const first = Number(block.dataset["first"]);
      return first <= seq && seq < first + Number(block.dataset["count"]);
    });
    if (at < 0) return undefined;
    if (at !== this.open) {
      this.open = at;
      this.details = parsed<Detail>(this.all[at]!);
    }
    return this.details.find((detail) => detail.seq === seq);
  }
}

/** What was under way at the last event is not: nobody knows here whether it went on. */
function ended(header: Header): Header {
  const goal = header.goal?.state === "running" ? { ...header.goal, state: "unfinished" } : header.goal;
  return { ...header, running: 0, pending: 0, goal };
}

function recorded(): Model {
  const events: EventSummary[] = [];
  for (const block of blocks("events")) for (const event of parsed<EventSummary>(block)) events.push(event);
  const [facts] = blocks("facts").flatMap((block) => parsed<{ header: Header }>(block));
  const header = facts && ended(facts.header);
  const details = new Details();
  const listeners = new Set<Listener>();
  return {
    get: (name) => (name === "snapshot" ? { events, header } : name === "recorded"),
    on: (name, callback) => void (name === "msg:custom" && listeners.add(callback as Listener)),
    off: (_name, callback) => void listeners.delete(callback as Listener),
    send: (content) => {
      const { type, seq } = content as { type: string; seq: number };
      const detail = type === "detail" ? details.get(seq) : undefined;
      if (detail) queueMicrotask(() => listeners.forEach((listener) => listener({ type: "detail", ...detail })));
    },
  };
}

function themeButton(): HTMLButtonElement {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const button = h("button", { type: "button", class: "muse-button muse-page-theme" });
  let chosen: boolean | undefined;
  const show = (): void => {
    const light = !(chosen ?? dark.matches);
    document.body.dataset["jpThemeLight"] = String(light);
    document.documentElement.style.colorScheme = light ? "light" : "dark";
    button.textContent = light ? "Dark" : "Light";
    button.title = light ? "Show the page in dark colours" : "Show the page in light colours";
  };
  button.addEventListener("click", () => {
    chosen = !(chosen ?? dark.matches);
    show();
  });
  dark.addEventListener("change", show);
  show();
  return button;
}

// The axis has the clock of whoever looks at it, and so has the page.
for (const time of document.querySelectorAll("time")) {
  const at = new Date(time.dateTime);
  if (!Number.isNaN(at.getTime())) time.textContent = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}
document.querySelector(".muse-page-head")?.append(themeButton());
const el = document.getElementById("muse-page-timeline");
if (el) timeline.render({ model: recorded(), el });
