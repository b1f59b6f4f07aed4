// What plans, critiques and attacks have in common: a head and a notice, a first word to the kernel, and how it is told
// that none answers.
import type { RenderContext } from "../protocol";
import { framed, h } from "./dom";

/** After this many milliseconds without a word from the kernel a view says that it shows what was stored. */
export const SILENCE = 4000;

export interface Opening {
  readonly root: HTMLElement;
  readonly title: HTMLElement;
  /** Whether the kernel has said something; the view sets it. */
  connected: boolean;
  /** Whether it was waited for long enough. */
  waited: boolean;
  /** Draws again, at most once for each frame. */
  redraw(): void;
  /** Whether no kernel is behind the view. */
  lost(): boolean;
  /** Shows a line below the head, or none. */
  notice(text: string): void;
  close(): void;
}

/** Opens a view called `name` with what comes after the title in its head (`head`), and below it (`parts`). */
export function opening<M>(
  { model, el }: RenderContext,
  name: string,
  label: string,
  head: readonly Node[],
  parts: readonly Node[],
  view: { hear(message: M): void; draw(): void },
): Opening {
  const title = h("span", { class: "muse-title" });
  const notice = h("div", { class: "muse-notice", role: "status", hidden: true });
  const root = h(
    "section",
    { class: `muse muse-${name}`, "aria-label": label, "data-lm-suppress-shortcuts": "true" },
    h("header", { class: `muse-${name}-head` }, title, h("span", { class: "muse-space" }), ...head),
    notice,
    ...parts,
  );
  el.append(root);
  const redraw = framed(() => view.draw());
  const onMessage = view.hear as (...args: never[]) => void;
  model.on("msg:custom", onMessage);
  const silence = setTimeout(() => {
    made.waited = true;
    redraw();
  }, SILENCE);
  const made: Opening = {
    root,
    title,
    connected: false,
    waited: false,
    redraw,
    lost: () => made.waited && !made.connected,
    notice: (text) => {
      notice.hidden = !text;
      notice.textContent = text;
    },
    close: () => {
      clearTimeout(silence);
      redraw.cancel();
      model.off("msg:custom", onMessage);
      root.remove();
    },
  };
  return made;
}

/** Words sent to the kernel that it has not confirmed: one at a time, and after some silence it is told how to type it. */
export function saying(send: (message: unknown) => void, changed: (problem: string) => void): {
  /** What was sent; empty if it was taken. */
  sent(): string;
  say(message: Readonly<Record<string, unknown>>, what: string, typed: string): void;
  taken(): void;
} {
  let what = "";
  let timer: ReturnType<typeof setTimeout> | undefined;
  const taken = (): void => {
    clearTimeout(timer);
    what = "";
  };
  return {
    sent: () => what,
    say: (message, name, typed) => {
      if (what) return;
      what = name;
      timer = setTimeout(() => {
        taken();
        changed(`${name} was sent, but the kernel has not answered. Type it in a cell: ${typed}.`);
      }, SILENCE);
      send(message);
      changed("");
    },
    taken,
  };
}

/** A button that does `act`. */
export function button(text: string, main: boolean, act: () => void): HTMLButtonElement {
  const made = h("button", { type: "button", class: `muse-button${main ? " muse-main" : ""}` }, text);
  made.addEventListener("click", act);
  return made;
}

export const NO_KERNEL = "No running kernel behind this view: it shows what was stored with it.";
