// Making elements: text is always set as text, so nothing that an agent wrote becomes markup.

type Attributes = Readonly<Record<string, string | number | boolean>>;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children);
  return element;
}

/** Runs `flush` at most once per animation frame, however often it is asked for. */
export function framed(flush: () => void): { (): void; cancel(): void } {
  let frame = 0;
  const ask = (): void => {
    if (frame) return;
    frame = requestAnimationFrame(() => {
      frame = 0;
      flush();
    });
  };
  ask.cancel = (): void => {
    if (frame) cancelAnimationFrame(frame);
    frame = 0;
  };
  return ask;
}

let ids = 0;

/** An id that no other view on the page has. */
export function uniqueId(prefix: string): string {
  return `${prefix}-${Date.now().toString(36)}-${++ids}`;
}

/** A unified diff, line by line; the sign stays in the text, so colour is never the only mark. */
export function diffBlock(diff: string, limit = 2000): HTMLElement {
  const lines = diff.replace(/\n$/, "").split("\n");
  const pre = h("pre", { class: "muse-code muse-diff", tabindex: 0, "aria-label": "Diff" });
  for (const line of lines.slice(0, limit)) {
    const sort = line.startsWith("@@")
      ? "hunk"
      : line.startsWith("+++") || line.startsWith("---") || line.startsWith("diff ")
        ? "file"
        : line.startsWith("+")
          ? "add"
          : line.startsWith("-")
            ? "del"
            : "same";
    pre.append(h("span", { class: `muse-d-${sort}` }, `${line}\n`));
  }
  if (lines.length > limit) pre.append(`... ${lines.length - limit} more lines\n`);
  return pre;
}
