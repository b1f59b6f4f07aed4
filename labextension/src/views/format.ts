// Numbers, times and shapes as text: one place, so that list, axis, header and detail say the same thing alike.
import type { Group, PointGroup } from "./lanes";

export function count(n: number): string {
  if (n < 10_000) return n.toLocaleString("en-US");
  if (n < 1_000_000) return `${(n / 1000).toFixed(n < 100_000 ? 1 : 0)}k`;
  if (n < 1e9) return `${(n / 1e6).toFixed(n < 1e7 ? 2 : 1)}M`;
  return `${(n / 1e9).toFixed(n < 1e10 ? 2 : 1)}G`;
}

export function money(usd: number, estimated = false): string {
  const digits = usd !== 0 && Math.abs(usd) < 0.1 ? 4 : 2;
  return `${estimated ? "~" : ""}$${usd.toFixed(digits)}`;
}

export function duration(ms: number): string {
  if (ms < 1) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  const whole = Math.round(s);
  const h = Math.floor(whole / 3600);
  const m = Math.floor((whole % 3600) / 60);
  return h ? `${h} h ${pad(m)} min` : `${m} min ${pad(whole % 60)} s`;
}

/** Local wall clock; milliseconds only where the axis is that fine. */
export function clock(ms: number, fine = false): string {
  const d = new Date(ms);
  const base = `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  return fine ? `${base}.${String(d.getMilliseconds()).padStart(3, "0")}` : base;
}

const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000,
  900_000, 1_800_000, 3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000,
];

/** The smallest even step (ms) for which ticks of a span of `ms` on `width` pixels stay `apart` pixels from each other. */
export function tickStep(ms: number, width: number, apart: number): number {
  const least = (ms / Math.max(1, width)) * apart;
  return STEPS.find((step) => step >= least) ?? Math.ceil(least / 86_400_000) * 86_400_000;
}

function pad(n: number): string {
  return String(n).padStart(2, "0");
}

/** Outlines in a box of 10 by 10, for canvas (Path2D) and SVG alike; no two groups share one. */
export const SHAPES: Readonly<Record<Group | "error", string>> = {
  model: "M1 2.5h8v5h-8z",
  tool: "M1 3.5h5v-2l3.2 3.5l-3.2 3.5v-2h-5z",
  approval: "M5 .5l4.5 4.5l-4.5 4.5l-4.5 -4.5z",
  file: "M2 1h4l2.5 2.5v5.5h-6.5z",
  goal: "M1.8 .8h1.2v.6h6l-2 2.3l2 2.3h-6v3.6h-1.2z",
  merge: "M5 1a4 4 0 1 0 0 8a4 4 0 1 0 0 -8z",
  user: "M5 .8a2.1 2.1 0 1 0 0 4.2a2.1 2.1 0 1 0 0 -4.2zM1.2 9.4c0 -2.5 1.6 -3.7 3.8 -3.7s3.8 1.2 3.8 3.7z",
  other: "M5 3.4a1.6 1.6 0 1 0 0 3.2a1.6 1.6 0 1 0 0 -3.2z",
  error: "M1 2.4l1.4 -1.4l2.6 2.6l2.6 -2.6l1.4 1.4l-2.6 2.6l2.6 2.6l-1.4 1.4l-2.6 -2.6l-2.6 2.6l-1.4 -1.4l2.6 -2.6z",
};

export const GROUP_NAMES: Readonly<Record<Group | "error", string>> = {
  model: "Model",
  tool: "Tools",
  approval: "Approvals",
  file: "Files",
  goal: "Goal",
  merge: "Merges",
  user: "User",
  other: "Other",
  error: "Failed",
};

export function shapeSvg(group: Group | PointGroup): SVGSVGElement {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", "0 0 10 10");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS(ns, "path"));
  setShape(svg, group);
  return svg;
}

/** Turn an element of `shapeSvg` into the shape of another group. */
export function setShape(svg: SVGSVGElement, group: Group | PointGroup): void {
  svg.setAttribute("class", `muse-shape muse-c-${group}`);
  svg.firstElementChild?.setAttribute("d", SHAPES[group]);
}
