// The pure model of the timeline: events in, lanes with spans and points out; nothing here knows the DOM.
import type { EventSummary } from "../protocol";

/** What the legend, the filter and the shapes tell apart. */
export type Group = "model" | "tool" | "approval" | "file" | "goal" | "merge" | "user" | "other";

export type SpanState = "running" | "ok" | "failed" | "cut";
export type Effect = "" | "read" | "write" | "process";

export interface Span {
  readonly seq: number;
  readonly kind: "model" | "tool";
  /** Milliseconds since the epoch. */
  readonly start: number;
  /** End of the waiting part: a tool's start after its decision, a model's first token. */
  acted: number;
  /** Infinity while running. */
  end: number;
  closedBy: number;
  state: SpanState;
  effect: Effect;
  label: string;
}

export interface Points {
  readonly times: number[];
  readonly seqs: number[];
}

export interface Lane {
  readonly name: string;
  readonly model: Span[];
  /** Parallel tool calls go to different tracks; in a track spans are ordered by start. */
  readonly tools: Span[][];
  readonly points: Map<PointGroup, Points>;
}

export type PointGroup = "approval" | "file" | "goal" | "merge" | "user" | "error";
export const POINT_GROUPS: readonly PointGroup[] = ["file", "merge", "goal", "approval", "user", "error"];

const MAX_TRACKS = 6;
// Spans of the last track may overlap, so the search for the first visible one looks this far back.
const OVERLAP = 32;

const GROUPS: Readonly<Record<string, Group>> = {
  model: "model",
  tool: "tool",
  approval: "approval",
  rule: "approval",
  file: "file",
  goal: "goal",
  merge: "merge",
  worktree: "merge",
  user: "user",
};

export function groupOf(kind: string): Group {
  return GROUPS[kind.slice(0, kind.indexOf("."))] ?? "other";
}

export function laneOf(event: EventSummary): string {
  if (event.kind.startsWith("user.") || event.kind === "approval.granted" || event.kind === "approval.denied") {
    return "user";
  }
  return event.agent || "harness";
}

function pointGroup(event: EventSummary): PointGroup | null {
  const group = groupOf(event.kind);
  if (event.ok === false) return "error";
  if (event.kind === "file.observed") return null;
  switch (group) {
    case "approval":
    case "file":
    case "goal":
    case "merge":
    case "user":
      return group;
    default:
      return null;
  }
}

/** Index of the first element >= x in ascending `values`. */
export function lowerBound(values: readonly number[], x: number): number {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle]! < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Index of the first span of a track that may reach `time` or lies after it. */
export function firstVisible(track: readonly Span[], time: number): number {
  let low = 0;
  let high = track.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (track[middle]!.start < time) low = middle + 1;
    else high = middle;
  }
  const earliest = Math.max(0, low - OVERLAP);
  for (let i = earliest; i < low; i++) {
    if (track[i]!.end >= time) return i;
  }
  return low;
}

export class TimelineModel {
  readonly events: EventSummary[] = [];
  /** Times of `events`, never falling: a clock that was set back must not break the search. */
  readonly times: number[] = [];
  readonly lanes: Lane[] = [];
  /** Grows when a lane or a track appears, so that the layout is made anew only then. */
  shape = 0;
  private readonly seqs: number[] = [];
  private readonly byName = new Map<string, Lane>();
  private readonly open = new Map<number, Span>();
  private readonly followers = new Map<number, number[]>();

  get last(): number {
    return this.seqs.length ? this.seqs[this.seqs.length - 1]! : 0;
  }

  get start(): number {
    return this.times.length ? this.times[0]! : 0;
  }

  get end(): number {
    return this.times.length ? this.times[this.times.length - 1]! : 0;
  }

  get running(): number {
    return this.open.size;
  }

  /** Position of the event with this seq, or -1. */
  indexOf(seq: number): number {
    const i = lowerBound(this.seqs, seq);
    return this.seqs[i] === seq ? i : -1;
  }

  get(seq: number): EventSummary | undefined {
    const i = this.indexOf(seq);
    return i < 0 ? undefined : this.events[i];
  }

  /** Seqs of the events that name this one as their cause. */
  ledTo(seq: number): readonly number[] {
    return this.followers.get(seq) ?? [];
  }

  /** The causes of an event, nearest first, each once, at most `limit`. */
  causes(seq: number, limit = 12): EventSummary[] {
    const found: EventSummary[] = [];
    const seen = new Set<number>([seq]);
    let front = this.get(seq)?.cause ?? [];
    while (front.length && found.length < limit) {
      const next: number[] = [];
      for (const cause of [...front].sort((a, b) => b - a)) {
        if (seen.has(cause) || found.length >= limit) continue;
        seen.add(cause);
        const event = this.get(cause);
        if (!event) continue;
        found.push(event);
        next.push(...event.cause);
      }
      front = next;
    }
    return found;
  }

  /** Take the next event; an event that is already here, or older, is dropped. */
  add(event: EventSummary): boolean {
    if (event.seq <= this.last) return false;
    const parsed = Date.parse(event.ts);
    const time = Math.max(this.end, Number.isNaN(parsed) ? this.end : parsed);
    this.events.push(event);
    this.times.push(time);
    this.seqs.push(event.seq);
    for (const cause of event.cause) {
      const list = this.followers.get(cause);
      if (list) list.push(event.seq);
      else this.followers.set(cause, [event.seq]);
    }
    const lane = this.lane(laneOf(event));
    this.spans(event, time, lane);
    const group = pointGroup(event);
    if (group) {
      let points = lane.points.get(group);
      if (!points) {
        points = { times: [], seqs: [] };
        lane.points.set(group, points);
        this.shape++;
      }
      points.times.push(time);
      points.seqs.push(event.seq);
    }
    return true;
  }

  private lane(name: string): Lane {
    let lane = this.byName.get(name);
    if (!lane) {
      lane = { name, model: [], tools: [], points: new Map() };
      this.byName.set(name, lane);
      this.lanes.push(lane);
      this.lanes.sort((a, b) => laneRank(a.name) - laneRank(b.name));
      this.shape++;
    }
    return lane;
  }

  private spans(event: EventSummary, time: number, lane: Lane): void {
    switch (event.kind) {
      case "model.requested": {
        const span = newSpan(event, time, "model", text(event.data["model"]) || "model");
        if (!lane.model.length) this.shape++;
        lane.model.push(span);
        this.open.set(event.seq, span);
        return;
      }
      case "model.completed": {
        const span = this.close(event, time, "ok");
        const first = event.data["ttft_s"];
        if (span && typeof first === "number") span.acted = Math.min(time, span.start + first * 1000);
        return;
      }
      case "model.failed":
        this.close(event, time, "failed");
        return;
      case "model.abandoned":
        this.close(event, time, "cut");
        return;
      case "tool.requested": {
        const span = newSpan(event, time, "tool", text(event.data["name"]) || "tool");
        this.track(lane).push(span);
        this.open.set(event.seq, span);
        return;
      }
      case "tool.started": {
        const span = event.ref === null ? undefined : this.open.get(event.ref);
        if (span) {
          span.acted = time;
          span.effect = effect(event.data["effect"]);
        }
        return;
      }
      case "tool.finished":
        this.close(event, time, event.ok === false ? "failed" : "ok");
        return;
      case "tool.failed":
        this.close(event, time, "failed");
        return;
      case "tool.cancelled":
      case "tool.unknown":
        this.close(event, time, "cut");
        return;
      case "session.closed":
        for (const span of this.open.values()) {
          span.end = time;
          span.state = "cut";
        }
        this.open.clear();
        return;
    }
  }

  private close(event: EventSummary, time: number, state: SpanState): Span | undefined {
    const span = event.ref === null ? undefined : this.open.get(event.ref);
    if (!span) return undefined;
    span.end = time;
    span.state = state;
    span.closedBy = event.seq;
    this.open.delete(span.seq);
    return span;
  }

  private track(lane: Lane): Span[] {
    for (const track of lane.tools) {
      if (track[track.length - 1]!.end !== Infinity) return track;
    }
    if (lane.tools.length >= MAX_TRACKS) return lane.tools[MAX_TRACKS - 1]!;
    const track: Span[] = [];
    lane.tools.push(track);
    this.shape++;
    return track;
  }
}

function newSpan(event: EventSummary, time: number, kind: "model" | "tool", label: string): Span {
  return {
    seq: event.seq,
    kind,
    start: time,
    acted: kind === "model" ? time : Infinity,
    end: Infinity,
    closedBy: 0,
    state: "running",
    effect: "",
    label,
  };
}

function laneRank(name: string): number {
  if (name === "user") return 0;
  if (name === "harness") return 1;
  return 2;
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function effect(value: unknown): Effect {
  return value === "read" || value === "write" || value === "process" ? value : "";
}
