// The line above the axis: the goal and its state, what ran, tokens and money, the connection.
import type { Header } from "../protocol";
import { h } from "./dom";
import { count, money } from "./format";

/** Goal states that the user need not look after, and those that need them. */
const GOOD = new Set(["met"]);
const BAD = new Set(["error", "blocked", "budget", "stalled", "wedged"]);

export class HeaderLine {
  readonly element: HTMLElement;
  private readonly state = h("span", { class: "muse-state" });
  private readonly goal = h("span", { class: "muse-goal" });
  private readonly numbers = h("span", { class: "muse-numbers" });
  private readonly stop: HTMLButtonElement;
  private readonly live = h("span", { class: "muse-sr", "aria-live": "polite" });
  private drawn = "";
  private said = "";

  constructor(onStop: () => void) {
    this.stop = h("button", { type: "button", class: "muse-button muse-stop", hidden: true }, "Stop");
    this.stop.addEventListener("click", () => {
      this.stop.disabled = true;
      this.stop.textContent = "Stopping";
      onStop();
    });
    this.element = h("header", { class: "muse-header" }, this.state, this.goal, this.numbers, this.stop, this.live);
  }

  draw(header: Header, connected: boolean): void {
    const key = JSON.stringify([header, connected]);
    if (key === this.drawn) return;
    this.drawn = key;
    const { goal } = header;
    const word = goal ? goal.state : header.running ? "working" : "idle";
    this.state.textContent = word;
    this.state.className = `muse-state ${GOOD.has(word) ? "muse-good" : BAD.has(word) ? "muse-bad" : ""}`;
    this.goal.textContent = goal ? goal.text + (goal.why ? ` (${goal.why})` : "") : "No goal";
    this.goal.title = this.goal.textContent;
    const cached = header.input_tokens ? Math.round((100 * header.cached_tokens) / header.input_tokens) : 0;
    const items: [string, string, string][] = [
      ["events", count(header.events), ""],
      ["model calls", count(header.model_calls), ""],
      ["tool runs", count(header.tool_runs), ""],
      ["failed", count(header.errors), ""],
      ["tokens in", count(header.input_tokens), header.input_tokens ? `${cached}% cached` : ""],
      ["out", count(header.output_tokens), ""],
      [
        "spent",
        money(header.usd, header.estimated),
        header.estimated ? "part of it is an estimate: a call ended without usage" : "",
      ],
    ];
    if (header.pending) items.unshift(["to approve", count(header.pending), ""]);
    if (header.running) items.unshift(["running", count(header.running), ""]);
    this.numbers.replaceChildren(
      ...items.map(([name, value, note]) => {
        const cell = h("span", { class: `muse-number muse-n-${name.replace(/ /g, "-")}` }, h("b", {}, value), ` ${name}`);
        if (note && name === "tokens in") cell.append(h("span", { class: "muse-dim" }, ` (${note})`));
        else if (note) cell.title = note;
        return cell;
      }),
    );
    const stoppable = connected && (header.running > 0 || goal?.state === "running");
    if (this.stop.hidden === stoppable) {
      this.stop.hidden = !stoppable;
      this.stop.disabled = false;
      this.stop.textContent = "Stop";
    }
    const say = `${goal ? `Goal ${word}.` : ""}${header.pending ? ` ${header.pending} to approve.` : ""}`;
    if (say !== this.said) {
      this.said = say;
      this.live.textContent = say;
    }
  }
}
