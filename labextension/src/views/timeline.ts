// The timeline view: keeps the model in step with the kernel and puts header, axis, list and detail together.
import type { EventsMessage, EventSummary, Header, RenderContext, TimelineMessage, TimelineSnapshot } from "../protocol";
import "./timeline.css";
import { Axis } from "./axis";
import { Detail } from "./detail";
import { framed, h } from "./dom";
import { count, GROUP_NAMES, shapeSvg } from "./format";
import { HeaderLine } from "./header";
import { TimelineModel, type Group } from "./lanes";
import { EventList } from "./list";

const CHIPS: readonly (Group | "error")[] = ["model", "tool", "approval", "file", "goal", "merge", "user", "error", "other"];
/** After this many milliseconds without a word from the kernel the view says that it shows a stored part only. */
const SILENCE = 4000;

/** A question for missing events that is not answered in this many milliseconds is asked again. */
const ASK_AGAIN = 1000;

const NO_HEADER: Header = {
  events: 0,
  agents: 0,
  running: 0,
  pending: 0,
  model_calls: 0,
  tool_runs: 0,
  errors: 0,
  input_tokens: 0,
  cached_tokens: 0,
  output_tokens: 0,
  usd: 0,
  estimated: false,
  goal: null,
};

function render({ model: link, el }: RenderContext): () => void {
  // What is shown; `loading` grows beside it while the kernel sends the history that a snapshot lacks.
  let shown = modelOf(snapshot().events ?? []);
  let header = snapshot().header ?? NO_HEADER;
  let loading: TimelineModel | null = new TimelineModel();
  let connected = false;
  let asked = -1;
  let askedAt = 0;
  let selected = 0;
  let follow = true;
  // An exported page: no kernel is behind it, nor was one ever meant to be.
  const recorded = link.get("recorded") === true;

  const redraw = framed(draw);
  const head = new HeaderLine(() => link.send({ type: "stop" }));
  const axis = new Axis(shown, { select, moved: () => setFollow(false), live: () => connected }, redraw);
  const list = new EventList(shown, { select, left: () => setFollow(false), open: () => detail.focus() }, redraw);
  const detail = new Detail(select, (seq) => link.send({ type: "detail", seq }), deselect);

  const search = h("input", {
    type: "search",
    class: "muse-input",
    placeholder: "Filter: text, kind, agent, #seq",
    "aria-label": "Filter events by text",
  });
  const chosen = new Set<Group | "error">();
  const chips = CHIPS.map((group) => {
    const chip = h(
      "button",
      { type: "button", class: "muse-chip", "aria-pressed": "false", title: `Show ${GROUP_NAMES[group].toLowerCase()} only` },
      shapeSvg(group),
      GROUP_NAMES[group],
    );
    chip.addEventListener("click", () => {
      if (!chosen.delete(group)) chosen.add(group);
      chip.setAttribute("aria-pressed", String(chosen.has(group)));
      filter();
    });
    return chip;
  });
  search.addEventListener("input", filter);
  const followButton = button("Follow", "Keep the newest events in sight", () => setFollow(!follow));
  followButton.hidden = recorded;
  const matched = h("span", { class: "muse-dim muse-num muse-matched" });
  const notice = h("div", { class: "muse-notice", role: "status", hidden: true });
  const root = h(
    "div",
    { class: "muse muse-timeline", "data-lm-suppress-shortcuts": "true" },
    head.element,
    notice,
    h(
      "div",
      { class: "muse-bar muse-axis-bar" },
      h("span", { class: "muse-dim" }, "Drag to move, Ctrl + wheel to zoom"),
      h("span", { class: "muse-legend muse-dim" }, "bars: model, R read, W write, P process; \u00d7 failed, \u2026 cut off"),
      h("span", { class: "muse-space" }),
      button("\u2212", "Zoom out", () => zoom(1 / 0.6)),
      button("+", "Zoom in", () => zoom(0.6)),
      button("All", "Show the whole time", () => axis.fit()),
      followButton,
    ),
    axis.element,
    h("div", { class: "muse-bar" }, search, h("span", { class: "muse-chips", role: "group", "aria-label": "Kinds" }, ...chips), matched),
    h("div", { class: "muse-split" }, list.element, detail.element),
  );
  root.addEventListener("keydown", (e) => {
    if (e.key !== "Escape" || !selected) return;
    e.stopPropagation();
    deselect();
  });
  el.append(root);

  const onMessage = ((message: TimelineMessage) => {
    if (message.type === "events") events(message);
    else if (message.type === "detail") detail.arrived(shown, message);
  }) as (...args: never[]) => void;
  link.on("msg:custom", onMessage);

  const resize = new ResizeObserver(redraw);
  resize.observe(root);
  const theme = new MutationObserver(redraw);
  theme.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-name", "data-jp-theme-light"] });
  const silence = setTimeout(() => {
    if (!connected && !recorded) {
      notice.hidden = false;
      notice.textContent = `No running kernel behind this view: it shows the last ${count(shown.events.length)} events that were stored with it.`;
    }
  }, SILENCE);

  setFollow(true);
  since(0);
  redraw();

  function snapshot(): TimelineSnapshot {
    return (link.get("snapshot") ?? {}) as TimelineSnapshot;
  }

  function since(seq: number): void {
    // One question per gap: until it is answered, or was lost, each message after the gap would ask again.
    const now = performance.now();
    if (asked === seq && now - askedAt < ASK_AGAIN) return;
    asked = seq;
    askedAt = now;
    link.send({ type: "since", seq });
  }

  function events(message: EventsMessage): void {
    if (!connected) {
      connected = true;
      notice.hidden = true;
    }
    header = message.header;
    const target = loading ?? shown;
    if (message.since > target.last) {
      since(target.last);
      return;
    }
    asked = -1;
    for (const event of message.events) target.add(event);
    if (loading && loading.last >= shown.last) {
      shown = loading;
      loading = null;
      axis.setModel(shown);
      list.setModel(shown);
      if (selected) detail.show(shown, selected);
    }
    axis.arrived();
    redraw();
  }

  function draw(): void {
    head.draw(header, connected);
    const growing = axis.draw();
    list.draw();
    const n = list.count;
    matched.textContent = !search.value.trim() && !chosen.size ? "" : `${count(n)} of ${count(shown.events.length)}`;
    if (growing) redraw();
  }

  function select(seq: number): void {
    setFollow(false);
    selected = seq;
    axis.selected = seq;
    list.selected = seq;
    axis.reveal(seq);
    list.reveal(seq);
    detail.show(shown, seq);
    redraw();
  }

  function deselect(): void {
    const within = detail.element.contains(document.activeElement);
    selected = 0;
    axis.selected = 0;
    list.selected = 0;
    detail.hide();
    if (within) list.element.focus({ preventScroll: true });
    redraw();
  }

  function setFollow(on: boolean): void {
    follow = on;
    axis.follow = on;
    list.follow = on;
    followButton.setAttribute("aria-pressed", String(on));
    redraw();
  }

  function zoom(factor: number): void {
    axis.zoom(factor);
  }

  function filter(): void {
    list.setFilter({ terms: search.value.toLowerCase().split(/\s+/).filter(Boolean), groups: chosen });
  }

  return () => {
    clearTimeout(silence);
    redraw.cancel();
    resize.disconnect();
    theme.disconnect();
    link.off("msg:custom", onMessage);
    root.remove();
  };
}

function modelOf(events: readonly EventSummary[]): TimelineModel {
  const model = new TimelineModel();
  for (const event of events) model.add(event);
  return model;
}

function button(text: string, title: string, action: () => void): HTMLButtonElement {
  const element = h("button", { type: "button", class: "muse-button", title, "aria-label": title }, text);
  element.addEventListener("click", action);
  return element;
}

export default { render };
