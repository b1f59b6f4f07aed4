// A hunk of a unified diff as rows with line numbers, in which the place of a finding is marked.

export interface HunkRow {
  readonly sort: "hunk" | "add" | "del" | "same";
  /** Line numbers as text, empty where there is none; `width` is that of the longest. */
  readonly before: string;
  readonly after: string;
  readonly width: number;
  readonly text: string;
  readonly marked: boolean;
}

interface Place {
  readonly start: number;
  readonly end: number;
  readonly text: string;
  readonly side: "new" | "old";
}

/** The rows of `hunk`; without one those of the place itself. */
export function numbered(hunk: string, place: Place): HunkRow[] {
  const lines = hunk ? hunk.split("\n") : place.text.split("\n").map((line) => ` ${line}`);
  const head = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(hunk);
  let before = head ? Number(head[1]) : place.start;
  let after = head ? Number(head[2]) : place.start;
  const width = String(Math.max(before, after) + lines.length).length;
  return lines.map((text, index) => {
    if (index === 0 && head) return { sort: "hunk", before: "", after: "", width, text, marked: false };
    const sort = text.startsWith("+") ? "add" : text.startsWith("-") ? "del" : "same";
    const old = sort === "add" ? "" : String(before++);
    const now = sort === "del" ? "" : String(after++);
    const number = place.side === "new" ? now : old;
    const marked = number !== "" && Number(number) >= place.start && Number(number) <= place.end;
    return { sort, before: old, after: now, width, text, marked };
  });
}
