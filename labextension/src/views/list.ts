// The event list: filtered positions of all events, of which only the rows in sight exist in the document.
import type { EventSummary } from "../protocol";
import { h, uniqueId } from "./dom";
import { clock, setShape, shapeSvg } from "./format";
import { groupOf, type Group, type TimelineModel } from "./lanes";

const ROW = 20;
const OVERSCAN = 8;
/** No more rows than this ever exist at once, whatever the height of the list. */
const WINDOW = 500;

// There to prove the others: shown to those whose filter asks for them.
const BEHIND: ReadonlySet<string> = new Set(["git.answered"]);

export interface Filter {
  readonly terms: readonly string[];
  /** Empty: all. */
  readonly groups: ReadonlySet<Group | "error">;
}

const haystacks = new WeakMap<EventSummary, string>();

/** What the filter searches; made once per event, so that each key typed costs no more than a search. */
function haystack(event: EventSummary): string {
  let text = haystacks.get(event);
  if (text === undefined) {
    text = `#${event.seq} ${event.agent} ${event.kind} ${event.text}`.toLowerCase();
    haystacks.set(event, text);
  }
  return text;
}

export function matches(event: EventSummary, filter: Filter): boolean {
  if (BEHIND.has(event.kind) && !filter.terms.some((term) => event.kind.includes(term))) return false;
  if (filter.groups.size) {
    const failed = event.ok === false && filter.groups.has("error");
    if (!failed && !filter.groups.has(groupOf(event.kind))) return false;
  }
  if (!filter.terms.length) return true;
  const hay = haystack(event);
  return filter.terms.every((term) => hay.includes(term));
}

export interface ListHost {
  select(seq: number): void;
  /** The user scrolled away from the tail. */
  left(): void;
  open(): void;
}

/** One row element, used again for whatever event comes into its place. */
class Row {
  readonly element = h("div", { class: "muse-row", role: "option" });
  private readonly seq = h("span", { class: "muse-seq" });
  private readonly time = h("span", { class: "muse-time" });
  private readonly agent = h("span", { class: "muse-agent" });
  private readonly shape = shapeSvg("other");
  private readonly kind = h("span");
  private readonly text = h("span", { class: "muse-text" });
  private drawn = "";

  constructor(private readonly listId: string) {
    this.element.append(
      this.seq,
      this.time,
      this.agent,
      h("span", { class: "muse-kind" }, this.shape, this.kind),
      this.text,
    );
  }

  show(event: EventSummary, time: number, at: number, total: number, chosen: boolean): void {
    const { element } = this;
    element.setAttribute("aria-setsize", String(total));
    const key = `${event.seq}:${at}:${chosen}`;
    if (key === this.drawn) return;
    this.drawn = key;
    element.className = `muse-row${chosen ? " muse-chosen" : ""}${event.ok === false ? " muse-failed" : ""}`;
    element.id = `${this.listId}-${event.seq}`;
    element.setAttribute("aria-selected", String(chosen));
    element.setAttribute("aria-posinset", String(at + 1));
    element.dataset["seq"] = String(event.seq);
    element.style.top = `${at * ROW}px`;
    this.seq.textContent = String(event.seq);
    this.time.textContent = clock(time);
    this.agent.textContent = event.agent || "harness";
    setShape(this.shape, event.ok === false ? "error" : groupOf(event.kind));
    this.kind.textContent = event.kind;
    this.text.textContent = event.text;
    this.text.title = event.text;
  }
}

export class EventList {
  readonly element: HTMLElement;
  follow = true;
  selected = 0;
  private readonly rowsHolder: HTMLElement;
  private readonly id = uniqueId("muse-list");
  private filter: Filter = { terms: [], groups: new Set() };
  /** Positions in `model.events` that pass the filter. */
  private shown: number[] = [];
  private seen = 0;
  private drawn = "";
  private revealing = 0;
  private readonly pool: Row[] = [];
  private ownScroll = -1;

  constructor(
    private model: TimelineModel,
    private readonly host: ListHost,
    private readonly redraw: () => void,
  ) {
    this.rowsHolder = h("div", { class: "muse-rows" });
    this.element = h(
      "div",
      { class: "muse-list", tabindex: 0, role: "listbox", "aria-label": "Events", id: this.id },
      this.rowsHolder,
    );
    this.element.addEventListener("scroll", () => this.scrolled());
    this.element.addEventListener("click", (e) => {
      const row = (e.target as HTMLElement).closest<HTMLElement>("[data-seq]");
      if (row) this.host.select(Number(row.dataset["seq"]));
    });
    this.element.addEventListener("keydown", (e) => this.key(e));
  }

  get count(): number {
    return this.shown.length;
  }

  setModel(model: TimelineModel): void {
    this.model = model;
    this.refilter();
  }

  setFilter(filter: Filter): void {
    this.filter = filter;
    this.refilter();
    if (this.selected) this.reveal(this.selected);
  }

  /** Bring the row of this event into sight, if the filter lets it through; with the next frame. */
  reveal(seq: number): void {
    this.revealing = seq;
    this.redraw();
  }

  draw(): void {
    this.extend();
    const total = this.count;
    const height = total * ROW;
    this.rowsHolder.style.height = `${height}px`;
    const view = this.element.clientHeight;
    // Hidden for a moment, as while the page changes its theme: it has its place again with its size.
    if (!view) return;
    if (this.follow) this.scrollTo(Math.max(0, height - view));
    else if (this.revealing) this.bring(this.position(this.revealing), view);
    this.revealing = 0;
    const top = this.element.scrollTop;
    const first = Math.max(0, Math.floor(top / ROW) - OVERSCAN);
    const last = Math.min(total, first + Math.min(WINDOW, Math.ceil(view / ROW) + 2 * OVERSCAN));
    const key = `${first}:${last}:${total}:${this.selected}:${this.seen}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const count = Math.max(0, last - first);
    while (this.pool.length < count) {
      const row = new Row(this.id);
      this.pool.push(row);
      this.rowsHolder.append(row.element);
    }
    while (this.pool.length > count) this.pool.pop()!.element.remove();
    for (let k = 0; k < count; k++) {
      const index = this.at(first + k);
      const event = this.model.events[index]!;
      this.pool[k]!.show(event, this.model.times[index]!, first + k, total, event.seq === this.selected);
    }
    const active = this.selected ? this.position(this.selected) : -1;
    if (active >= first && active < last) this.element.setAttribute("aria-activedescendant", `${this.id}-${this.selected}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  private refilter(): void {
    this.shown = [];
    this.seen = 0;
    this.drawn = "";
    this.redraw();
  }

  private extend(): void {
    const { events } = this.model;
    for (; this.seen < events.length; this.seen++) {
      if (matches(events[this.seen]!, this.filter)) this.shown.push(this.seen);
    }
  }

  private at(i: number): number {
    return this.shown[i]!;
  }

  private position(seq: number): number {
    const index = this.model.indexOf(seq);
    if (index < 0) return index;
    let low = 0;
    let high = this.shown.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.shown[middle]! < index) low = middle + 1;
      else high = middle;
    }
    return this.shown[low] === index ? low : -1;
  }

  private bring(at: number, view: number): void {
    if (at < 0) return;
    const top = at * ROW;
    const { scrollTop } = this.element;
    if (top < scrollTop) this.scrollTo(top);
    else if (top + ROW > scrollTop + view) this.scrollTo(top + ROW - view);
  }

  private scrollTo(top: number): void {
    if (Math.abs(this.element.scrollTop - top) < 1) return;
    this.element.scrollTop = top;
    this.ownScroll = this.element.scrollTop;
  }

  private scrolled(): void {
    const own = Math.abs(this.element.scrollTop - this.ownScroll) < 1;
    this.ownScroll = -1;
    if (!own && this.follow) {
      const left = this.count * ROW - this.element.clientHeight - this.element.scrollTop;
      if (left > ROW) this.host.left();
    }
    this.redraw();
  }

  private key(e: KeyboardEvent): void {
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW) - 1);
    const at = this.selected ? this.position(this.selected) : -1;
    let next: number;
    if (e.key === "ArrowDown") next = at + 1;
    else if (e.key === "ArrowUp") next = at < 0 ? this.count - 1 : at - 1;
    else if (e.key === "PageDown") next = at + page;
    else if (e.key === "PageUp") next = at - page;
    else if (e.key === "Home") next = 0;
    else if (e.key === "End") next = this.count - 1;
    else if (e.key === "Enter") {
      e.preventDefault();
      e.stopPropagation();
      this.host.open();
      return;
    } else return;
    e.preventDefault();
    e.stopPropagation();
    if (!this.count) return;
    next = Math.min(Math.max(next, 0), this.count - 1);
    this.host.select(this.model.events[this.at(next)]!.seq);
  }
}
