// The zoomable time axis: draws the visible part of the lanes on a canvas, in time bounded by pixels, not by events.
import { h } from "./dom";
import { clock, duration, SHAPES, tickStep } from "./format";
import { firstVisible, lowerBound, POINT_GROUPS, type Lane, type PointGroup, type Span, type TimelineModel } from "./lanes";

const RULER = 20;
const TRACK = 15;
const POINT_ROW = 14;
const GUTTER = 92;
const MAX_HEIGHT = 300;
const SHORTEST_MS = 5;
const MARGIN = 0.02;

interface Row {
  readonly lane: Lane;
  readonly top: number;
  readonly height: number;
  readonly model: number;
  readonly tools: readonly number[];
  readonly points: number;
}

export interface AxisHost {
  select(seq: number): void;
  /** The user moved the axis: the tail is no longer followed. */
  moved(): void;
  /** Whether the kernel is there, so that running spans grow. */
  live(): boolean;
}

export class Axis {
  readonly element: HTMLElement;
  selected = 0;
  follow = true;
  private readonly canvas: HTMLCanvasElement;
  private readonly tip: HTMLElement;
  private readonly scroller: HTMLElement;
  private readonly shapes = new Map<PointGroup, Path2D>();
  private rows: Row[] = [];
  private shape = -1;
  private height = RULER;
  private width = 0;
  /** Visible window, milliseconds since the epoch. */
  private from = 0;
  private to = 0;
  private lastArrival = performance.now();
  private dragging: { x: number; from: number; to: number; moved: boolean } | null = null;

  constructor(
    private model: TimelineModel,
    private readonly host: AxisHost,
    private readonly redraw: () => void,
  ) {
    for (const group of POINT_GROUPS) this.shapes.set(group, new Path2D(SHAPES[group]));
    this.canvas = h("canvas", {
      class: "muse-axis-canvas",
      tabindex: 0,
      role: "img",
      "aria-label": "Time axis. Plus and minus zoom, arrow keys move, 0 shows all. The list below has the same events.",
    });
    this.tip = h("div", { class: "muse-tip", hidden: true });
    this.scroller = h("div", { class: "muse-axis-scroll" }, this.canvas);
    this.element = h("div", { class: "muse-axis" }, this.scroller, this.tip);
    this.listen();
  }

  setModel(model: TimelineModel): void {
    const all = this.to === 0;
    this.model = model;
    this.shape = -1;
    if (all || this.follow) this.fit();
  }

  /** New events came in. */
  arrived(): void {
    this.lastArrival = performance.now();
    if (this.to === 0) this.fit();
  }

  fit(): void {
    if (!this.model.events.length) return;
    const start = this.model.start;
    const length = Math.max(this.now() - start, 1000);
    this.from = start - length * MARGIN;
    this.to = start + length * (1 + MARGIN);
    this.fitted = true;
    this.redraw();
  }
  private fitted = true;

  zoom(factor: number, at = (this.from + this.to) / 2): void {
    const length = this.to - this.from;
    const total = Math.max(this.now() - this.model.start, 1000);
    const wanted = Math.min(Math.max(length * factor, SHORTEST_MS), total * (1 + 2 * MARGIN) * 1.5);
    const share = (at - this.from) / length;
    this.from = at - share * wanted;
    this.to = this.from + wanted;
    this.fitted = false;
    this.redraw();
  }

  pan(ms: number): void {
    const limit = (this.to - this.from) * 0.9;
    const shift = Math.min(Math.max(ms, this.model.start - limit - this.from), this.now() + limit - this.to);
    this.from += shift;
    this.to += shift;
    this.fitted = false;
    this.redraw();
  }

  /** Bring a time into view without changing the scale. */
  reveal(seq: number): void {
    const i = this.model.indexOf(seq);
    if (i < 0) return;
    const time = this.model.times[i]!;
    if (time >= this.from && time <= this.to) return;
    const half = (this.to - this.from) / 2;
    this.from = time - half;
    this.to = time + half;
    this.fitted = false;
  }

  /** Draws one frame; returns whether something still grows. */
  draw(): boolean {
    const growing = this.host.live() && this.model.running > 0;
    const width = this.scroller.clientWidth;
    if (!width) return growing;
    if (this.shape !== this.model.shape) this.layout();
    if (this.follow) this.keepTail();
    const ratio = window.devicePixelRatio || 1;
    const pixelWidth = Math.round(width * ratio);
    const pixelHeight = Math.round(this.height * ratio);
    if (this.canvas.width !== pixelWidth || this.canvas.height !== pixelHeight) {
      this.canvas.width = pixelWidth;
      this.canvas.height = pixelHeight;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${this.height}px`;
    }
    this.width = width;
    const g = this.canvas.getContext("2d");
    if (!g) return growing;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    const paint = palette(this.element);
    g.clearRect(0, 0, width, this.height);
    g.textBaseline = "middle";
    this.drawRuler(g, paint);
    for (const row of this.rows) this.drawRow(g, row, paint);
    this.drawSelected(g, paint);
    return growing;
  }

  private now(): number {
    const end = this.model.end;
    // The clocks of kernel and browser may differ, so time since the last arrival is added instead of comparing them.
    return this.model.running && this.host.live() ? end + (performance.now() - this.lastArrival) : end;
  }

  private keepTail(): void {
    const now = this.now();
    if (this.fitted) {
      const start = this.model.start;
      const length = Math.max(now - start, 1000);
      this.from = start - length * MARGIN;
      this.to = start + length * (1 + MARGIN);
      return;
    }
    const length = this.to - this.from;
    if (now > this.to - length * 0.05 || now < this.from) {
      this.to = now + length * 0.08;
      this.from = this.to - length;
    }
  }

  private layout(): void {
    this.shape = this.model.shape;
    this.rows = [];
    let top = RULER;
    for (const lane of this.model.lanes) {
      let y = top + 3;
      const model = y;
      if (lane.model.length) y += TRACK;
      const tools = lane.tools.map(() => {
        const at = y;
        y += TRACK;
        return at;
      });
      const points = y;
      if (lane.points.size) y += POINT_ROW;
      if (y === top + 3) y += POINT_ROW;
      y += 3;
      this.rows.push({ lane, top, height: y - top, model, tools, points });
      top = y;
    }
    this.height = Math.max(top, RULER + 20);
    this.scroller.style.height = `${Math.min(this.height, MAX_HEIGHT)}px`;
  }

  private x(time: number): number {
    return GUTTER + ((time - this.from) / (this.to - this.from)) * (this.width - GUTTER);
  }

  private time(x: number): number {
    return this.from + ((x - GUTTER) / (this.width - GUTTER)) * (this.to - this.from);
  }

  private drawRuler(g: CanvasRenderingContext2D, paint: Palette): void {
    const plot = this.width - GUTTER;
    const step = tickStep(this.to - this.from, plot, 84);
    g.font = paint.small;
    g.textAlign = "left";
    g.fillStyle = paint.band;
    g.fillRect(0, 0, this.width, RULER);
    const zone = new Date(this.from).getTimezoneOffset() * 60_000;
    const first = Math.ceil((this.from - zone) / step) * step + zone;
    for (let t = first; t <= this.to; t += step) {
      const x = Math.round(this.x(t)) + 0.5;
      if (x < GUTTER) continue;
      g.strokeStyle = paint.grid;
      g.beginPath();
      g.moveTo(x, RULER - 6);
      g.lineTo(x, this.height);
      g.stroke();
      if (x + 50 < this.width) {
        g.fillStyle = paint.dim;
        g.fillText(clock(t, step < 1000), x + 4, RULER / 2);
      }
    }
    g.fillStyle = paint.dim;
    g.fillText(duration(this.to - this.from), 6, RULER / 2);
  }

  private drawRow(g: CanvasRenderingContext2D, row: Row, paint: Palette): void {
    g.strokeStyle = paint.line;
    g.beginPath();
    g.moveTo(0, row.top + 0.5);
    g.lineTo(this.width, row.top + 0.5);
    g.stroke();
    g.font = paint.label;
    g.fillStyle = paint.text;
    g.textAlign = "left";
    g.fillText(clip(g, row.lane.name, GUTTER - 14), 6, row.top + 3 + TRACK / 2);
    g.save();
    g.beginPath();
    g.rect(GUTTER, row.top, this.width - GUTTER, row.height);
    g.clip();
    this.drawTrack(g, row.lane.model, row.model, paint);
    row.lane.tools.forEach((track, i) => this.drawTrack(g, track, row.tools[i]!, paint));
    for (const group of POINT_GROUPS) this.drawPoints(g, row, group, paint);
    g.restore();
  }

  private drawTrack(g: CanvasRenderingContext2D, track: readonly Span[], y: number, paint: Palette): void {
    const now = this.now();
    let i = firstVisible(track, this.from);
    while (i < track.length) {
      const span = track[i]!;
      if (span.start > this.to) return;
      const end = span.end === Infinity ? now : span.end;
      const left = Math.max(this.x(span.start), GUTTER - 4);
      const right = Math.min(Math.max(this.x(end), left + 1.5), this.width + 4);
      this.drawSpan(g, span, left, right, y, paint);
      i++;
      // Whatever ends within the pixel just drawn cannot be seen: jump over it.
      if (right - left < 2 && i < track.length) {
        const next = firstVisible(track, this.time(right + 0.5));
        if (next > i) i = next;
      }
    }
  }

  private drawSpan(g: CanvasRenderingContext2D, span: Span, left: number, right: number, y: number, paint: Palette): void {
    const top = y + 1;
    const height = TRACK - 3;
    const colour = span.kind === "model" ? paint.model : paint[`tool-${span.effect || "none"}`];
    const acted = span.acted === Infinity ? right : Math.min(Math.max(this.x(span.acted), left), right);
    // A bar of a few pixels is one rectangle: thousands of them are in sight when all of a long run is shown.
    const narrow = right - left < 4;
    if (!narrow) {
      g.fillStyle = colour.soft;
      g.fillRect(left, top, right - left, height);
    }
    if (narrow) {
      g.fillStyle = colour.solid;
      g.fillRect(left, top, right - left, height);
    } else if (right > acted) {
      g.fillStyle = colour.solid;
      g.fillRect(acted, top, right - acted, height);
    }
    const width = right - left;
    if (narrow) {
      if (span.state === "failed") {
        g.fillStyle = paint.error;
        g.fillRect(left, top + height - 3, width, 3);
      }
      return;
    }
    g.strokeStyle = span.state === "failed" ? paint.error : colour.edge;
    g.lineWidth = span.state === "failed" ? 1.5 : 1;
    if (span.state === "running" || span.state === "cut") g.setLineDash([3, 2]);
    g.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
    g.setLineDash([]);
    g.lineWidth = 1;
    if (this.selected && (span.seq === this.selected || span.closedBy === this.selected)) {
      g.strokeStyle = paint.text;
      g.lineWidth = 2;
      g.strokeRect(left, top, width, height);
      g.lineWidth = 1;
    }
    if (width > 16) {
      const sign = span.state === "failed" ? "\u00d7 " : span.state === "cut" ? "\u2026 " : "";
      const letter = span.kind === "model" ? "" : span.effect ? `${span.effect[0]!.toUpperCase()} ` : "";
      const inside = Math.max(left, GUTTER) + 4;
      g.font = paint.small;
      g.textAlign = "left";
      const text = clip(g, sign + letter + span.label, right - inside - 3);
      const middle = top + height / 2 + 0.5;
      this.drawText(g, text, inside, middle, inside, acted, paint.text);
      this.drawText(g, text, inside, middle, acted, right, colour.ink);
    }
  }

  /** The part of a text that lies between two x, so that one text can cross two grounds and be read on both. */
  private drawText(
    g: CanvasRenderingContext2D,
    text: string,
    x: number,
    y: number,
    from: number,
    to: number,
    colour: string,
  ): void {
    if (!text || to <= from) return;
    g.save();
    g.beginPath();
    g.rect(from, y - TRACK, to - from, 2 * TRACK);
    g.clip();
    g.fillStyle = colour;
    g.fillText(text, x, y);
    g.restore();
  }

  private drawPoints(g: CanvasRenderingContext2D, row: Row, group: PointGroup, paint: Palette): void {
    const points = row.lane.points.get(group);
    if (!points) return;
    const shape = this.shapes.get(group)!;
    g.fillStyle = paint.points[group];
    g.strokeStyle = paint.back;
    const edge = this.time(GUTTER - 6);
    let i = lowerBound(points.times, edge);
    while (i < points.times.length) {
      const time = points.times[i]!;
      if (time > this.to) return;
      const x = this.x(time);
      g.save();
      g.translate(x - 5, row.points + 2);
      g.lineWidth = 1.5;
      g.stroke(shape);
      g.fill(shape);
      g.restore();
      i = Math.max(i + 1, lowerBound(points.times, this.time(x + 2)));
    }
  }

  private drawSelected(g: CanvasRenderingContext2D, paint: Palette): void {
    const i = this.selected ? this.model.indexOf(this.selected) : -1;
    if (i < 0) return;
    const x = Math.round(this.x(this.model.times[i]!)) + 0.5;
    if (x < GUTTER) return;
    g.strokeStyle = paint.focus;
    g.beginPath();
    g.moveTo(x, 0);
    g.lineTo(x, this.height);
    g.stroke();
  }

  /** What lies under the pointer: a point before a span. */
  private hit(x: number, y: number): { seq: number; text: string } | null {
    if (x < GUTTER) return null;
    const row = this.rows.find((r) => y >= r.top && y < r.top + r.height);
    if (!row) return null;
    if (y >= row.points && row.lane.points.size) {
      let best: { seq: number; gap: number } | null = null;
      for (const points of row.lane.points.values()) {
        const i = lowerBound(points.times, this.time(x));
        for (const k of [i - 1, i]) {
          const time = points.times[k];
          if (time === undefined) continue;
          const gap = Math.abs(this.x(time) - x);
          if (gap <= 7 && (!best || gap < best.gap)) best = { seq: points.seqs[k]!, gap };
        }
      }
      const event = best && this.model.get(best.seq);
      return event ? { seq: event.seq, text: `#${event.seq} ${event.kind}\n${event.text}` } : null;
    }
    const track =
      row.lane.model.length && y >= row.model && y < row.model + TRACK
        ? row.lane.model
        : row.lane.tools[row.tools.findIndex((top) => y >= top && y < top + TRACK)];
    if (!track) return null;
    const slack = ((this.to - this.from) / (this.width - GUTTER)) * 3;
    const time = this.time(x);
    for (let i = firstVisible(track, time - slack); i < track.length; i++) {
      const span = track[i]!;
      if (span.start > time + slack) return null;
      if (Math.min(span.end, this.now()) < time - slack) continue;
      const state = span.state === "running" ? "running" : span.state === "cut" ? "cut off" : span.state;
      const length = duration(Math.min(span.end, this.now()) - span.start);
      const first = this.model.get(span.seq)?.text ?? span.label;
      const last = span.closedBy ? (this.model.get(span.closedBy)?.text ?? "") : "";
      return { seq: span.seq, text: `#${span.seq} ${first}\n${state}, ${length}${last ? `\n${last}` : ""}` };
    }
    return null;
  }

  private listen(): void {
    const c = this.canvas;
    c.addEventListener(
      "wheel",
      (e) => {
        if (e.ctrlKey || e.metaKey) {
          e.preventDefault();
          this.host.moved();
          this.zoom(Math.exp(Math.min(Math.max(e.deltaY, -60), 60) * 0.01), this.time(e.offsetX));
        } else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
          e.preventDefault();
          this.host.moved();
          this.pan((e.deltaX / (this.width - GUTTER)) * (this.to - this.from));
        }
      },
      { passive: false },
    );
    c.addEventListener("pointerdown", (e) => {
      this.dragging = { x: e.offsetX, from: this.from, to: this.to, moved: false };
      c.setPointerCapture(e.pointerId);
    });
    c.addEventListener("pointermove", (e) => {
      const drag = this.dragging;
      if (drag) {
        const dx = e.offsetX - drag.x;
        if (Math.abs(dx) > 3 && !drag.moved) {
          drag.moved = true;
          this.host.moved();
        }
        if (drag.moved) {
          this.from = drag.from;
          this.to = drag.to;
          this.pan((-dx / (this.width - GUTTER)) * (drag.to - drag.from));
          this.tip.hidden = true;
        }
        return;
      }
      const hit = this.hit(e.offsetX, e.offsetY);
      c.style.cursor = hit ? "pointer" : "";
      this.tip.hidden = !hit;
      if (!hit) return;
      this.tip.textContent = hit.text;
      const box = this.element.getBoundingClientRect();
      const left = Math.min(e.clientX - box.left + 12, box.width - this.tip.offsetWidth - 4);
      this.tip.style.left = `${Math.max(0, left)}px`;
      this.tip.style.top = `${e.clientY - box.top + 14}px`;
    });
    c.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
    });
    c.addEventListener("pointerup", (e) => {
      const drag = this.dragging;
      this.dragging = null;
      if (!drag || drag.moved) return;
      const hit = this.hit(e.offsetX, e.offsetY);
      if (hit) this.host.select(hit.seq);
    });
    c.addEventListener("pointercancel", () => {
      this.dragging = null;
    });
    c.addEventListener("dblclick", () => this.fit());
    c.addEventListener("keydown", (e) => {
      const step = (this.to - this.from) * 0.15;
      if (e.key === "+" || e.key === "=") this.zoom(0.7);
      else if (e.key === "-") this.zoom(1 / 0.7);
      else if (e.key === "ArrowLeft") this.pan(-step);
      else if (e.key === "ArrowRight") this.pan(step);
      else if (e.key === "0") this.fit();
      else return;
      if (e.key !== "0") this.host.moved();
      e.preventDefault();
      e.stopPropagation();
    });
  }
}

interface Colour {
  readonly solid: string;
  readonly soft: string;
  readonly edge: string;
  readonly ink: string;
}

interface Palette {
  readonly text: string;
  readonly dim: string;
  readonly line: string;
  readonly grid: string;
  readonly band: string;
  readonly back: string;
  readonly focus: string;
  readonly error: string;
  readonly small: string;
  readonly label: string;
  readonly model: Colour;
  readonly "tool-none": Colour;
  readonly "tool-read": Colour;
  readonly "tool-write": Colour;
  readonly "tool-process": Colour;
  readonly points: Readonly<Record<PointGroup, string>>;
}

/** The theme's colours as the canvas needs them; read anew each frame, so that a theme switch is followed at once. */
function palette(element: HTMLElement): Palette {
  const style = getComputedStyle(element);
  const v = (name: string): string => style.getPropertyValue(`--muse-${name}`).trim();
  const colour = (name: string): Colour => ({
    solid: v(name),
    soft: v(`${name}-soft`),
    edge: v(`${name}-edge`),
    ink: v("ink"),
  });
  const family = style.fontFamily;
  return {
    text: v("fg"),
    dim: v("dim"),
    line: v("line"),
    grid: v("grid"),
    band: v("band"),
    back: v("bg"),
    focus: v("focus"),
    error: v("error"),
    small: `10px ${family}`,
    label: `600 11px ${family}`,
    model: colour("model"),
    "tool-none": colour("tool"),
    "tool-read": colour("read"),
    "tool-write": colour("write"),
    "tool-process": colour("process"),
    points: {
      approval: v("approval"),
      file: v("file"),
      goal: v("goal"),
      merge: v("merge"),
      user: v("user"),
      error: v("error"),
    },
  };
}

function clip(g: CanvasRenderingContext2D, text: string, width: number): string {
  if (width <= 4) return "";
  if (g.measureText(text).width <= width) return text;
  const share = width / g.measureText(text).width;
  let n = Math.floor(text.length * share);
  while (n > 0 && g.measureText(`${text.slice(0, n)}\u2026`).width > width) n--;
  return n > 1 ? `${text.slice(0, n)}\u2026` : "";
}
