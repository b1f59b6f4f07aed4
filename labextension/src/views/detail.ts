// The detail pane: one event with its data, its causes and what it led to, and the diff of a file change.
import type { DetailMessage, EventSummary } from "../protocol";
import { diffBlock, h } from "./dom";
import { clock, shapeSvg } from "./format";
import { groupOf, type TimelineModel } from "./lanes";

const CAUSES = 12;
const EFFECTS = 8;
const LONG_TEXT = 20_000;

export class Detail {
  readonly element: HTMLElement;
  private readonly cache = new Map<number, DetailMessage>();
  private shown = 0;

  constructor(
    private readonly select: (seq: number) => void,
    private readonly ask: (seq: number) => void,
    private readonly close: () => void,
  ) {
    this.element = h("section", { class: "muse-detail", tabindex: 0, "aria-label": "Event detail", hidden: true });
  }

  hide(): void {
    this.shown = 0;
    this.element.hidden = true;
  }

  focus(): void {
    this.element.focus({ preventScroll: true });
  }

  /** Show what is known of the event now and ask the kernel for the rest. */
  show(model: TimelineModel, seq: number): void {
    this.shown = seq;
    const event = model.get(seq);
    if (!event) {
      this.hide();
      return;
    }
    this.element.hidden = false;
    const full = this.cache.get(seq);
    this.draw(model, event, full);
    this.element.scrollTop = 0;
    if (!full) this.ask(seq);
  }

  /** The causes and effects of the shown event may have grown. */
  arrived(model: TimelineModel, message: DetailMessage): void {
    if (message.event) {
      if (this.cache.size > 200) this.cache.delete(this.cache.keys().next().value!);
      this.cache.set(message.seq, message);
    }
    const event = model.get(message.seq);
    if (message.seq === this.shown && event) this.draw(model, event, message);
  }

  private draw(model: TimelineModel, event: EventSummary, full: DetailMessage | undefined): void {
    const at = model.times[model.indexOf(event.seq)]!;
    const close = h("button", { type: "button", class: "muse-button muse-close", "aria-label": "Close the detail" }, "Close");
    close.addEventListener("click", this.close);
    const parts: (Node | string)[] = [
      h(
        "div",
        { class: "muse-detail-head" },
        shapeSvg(event.ok === false ? "error" : groupOf(event.kind)),
        h("strong", {}, event.kind),
        h("span", { class: "muse-dim muse-num" }, `#${event.seq}`),
        h("span", { class: "muse-dim muse-num" }, clock(at, true)),
        h("span", { class: "muse-dim" }, `${event.agent || "harness"}${event.turn ? `, turn ${event.turn}` : ""}`),
        h("span", { class: "muse-space" }),
        close,
      ),
      h("p", { class: "muse-detail-text" }, event.text),
    ];
    if (full?.diff) parts.push(heading("Diff"), diffBlock(full.diff));
    const causes = model.causes(event.seq, CAUSES);
    const opener = event.ref === null ? undefined : model.get(event.ref);
    if (opener && !causes.includes(opener)) parts.push(this.links("Opened by", [opener]));
    if (causes.length) parts.push(this.links("Because of", causes));
    const effects = model
      .ledTo(event.seq)
      .slice(0, EFFECTS)
      .map((seq) => model.get(seq))
      .filter((e): e is EventSummary => e !== undefined);
    if (effects.length) parts.push(this.links("Led to", effects));
    if (full && !full.event) parts.push(h("p", { class: "muse-note" }, "The log has no such event any more."));
    const data = full?.event?.["data"] ?? event.data;
    parts.push(heading(full ? "Data" : "Data (summary)"), dataTable(data));
    this.element.replaceChildren(...parts);
  }

  private links(title: string, events: readonly EventSummary[]): HTMLElement {
    const list = h("ol", { class: "muse-links" });
    for (const event of events) {
      const button = h(
        "button",
        { type: "button", class: "muse-link", title: event.text },
        shapeSvg(event.ok === false ? "error" : groupOf(event.kind)),
        h("span", { class: "muse-num" }, `#${event.seq}`),
        h("span", { class: "muse-link-kind" }, event.kind),
        h("span", { class: "muse-link-text" }, event.text),
      );
      button.addEventListener("click", () => this.select(event.seq));
      list.append(h("li", {}, button));
    }
    return h("div", {}, heading(title), list);
  }
}

function heading(text: string): HTMLElement {
  return h("h4", { class: "muse-h" }, text);
}

/** Keys and values; texts of several lines as they are, nested data as indented JSON. */
export function dataTable(data: unknown): HTMLElement {
  if (typeof data !== "object" || data === null || Array.isArray(data)) return codeBlock(pretty(data));
  const entries = Object.entries(data);
  if (!entries.length) return h("p", { class: "muse-note" }, "No data.");
  const table = h("dl", { class: "muse-data" });
  for (const [key, value] of entries) {
    table.append(h("dt", {}, key));
    const shown = pretty(value);
    const long = shown.includes("\n") || shown.length > 160;
    table.append(h("dd", {}, long ? codeBlock(shown) : h("code", {}, shown)));
  }
  return table;
}

function pretty(value: unknown): string {
  if (typeof value === "string") return value;
  if (Array.isArray(value) && value.length && value.every((v) => typeof v === "string" && !v.includes("\n"))) {
    const joined = value.join(", ");
    const words = value.length === 1 || value.every((v) => !/\s/.test(v));
    return words && joined.length <= 160 ? joined : value.join("\n");
  }
  return JSON.stringify(value, null, 2) ?? String(value);
}

function codeBlock(text: string): HTMLElement {
  const cut = text.length > LONG_TEXT ? `${text.slice(0, LONG_TEXT)}\n... ${text.length - LONG_TEXT} more characters` : text;
  return h("pre", { class: "muse-code", tabindex: 0 }, cut);
}
