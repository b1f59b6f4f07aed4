// The messages between a view and its Python side; the other half is musecode_jupyter/jupyter/views/live.py.
//
// Timeline, kernel -> view
//   {type: "events", since, upto, events, header}   events with since < seq <= upto, oldest first, at most one message
//                                                   every 100 ms; a view whose last seq is below `since` has a gap
//   {type: "detail", seq, event, diff?}             answer to "detail"; event is null if there is no such event
// Timeline, view -> kernel
//   {type: "since", seq}                            at render and on a gap: send everything after seq again
//   {type: "detail", seq}
//   {type: "stop"}
// Approvals, kernel -> view
//   {type: "approvals", pending}                    the whole small list, at each change
// Approvals, view -> kernel
//   {type: "approvals"}                             at render: send the list
//   {type: "answer", approval, digest, decision, why}
// Critiques, kernel -> view
//   {type: "findings", since, upto, findings}       findings that changed at events with since < seq <= upto; a view
//                                                   whose last seq is below `since` has a gap
//   {type: "refused", number, problem}              what the user said of a finding was not taken
//   {type: "gone", why}                             from the page, where it knows that no kernel is there any more
// Critiques, view -> kernel
//   {type: "since", seq}                            at render and on a gap: send all that changed after seq
//   {type: "settle", number, word, text}            what the user says of a finding: answer, accept or withdraw
// Plan, kernel -> view
//   {type: "plan", plan}                            the plan as it stands, whole; `plan.ts` has its fields
//   {type: "refused", problem}                      what the user said was not taken
// Plan, view -> kernel
//   {type: "plan"}                                  at render: say how it stands
//   {type: "approve", digest}                       exactly the plan with this digest is approved
//   {type: "edit", text}                            changes that are wanted
//   {type: "answer", question, text}                an answer to a question of the plan, counted from 1
//   {type: "cancel"}                                the plan is wanted no more
//
// Messages of the kernel reach every view of a model; a view drops what it already has. The synced trait `snapshot`
// ({events, header}, {pending}, {findings} or {plan}) is what a view shows until the kernel has spoken, or for ever if there is none. In an
// exported page (page.ts) the model has `recorded`, its snapshot is everything, and "detail" is answered by the page.

/** One event as the views see it; made by `summarise` in musecode_jupyter/session/summary.py. */
export interface EventSummary {
  readonly seq: number;
  /** ISO 8601, UTC; for display and for the axis, never for order. */
  readonly ts: string;
  readonly agent: string;
  readonly turn: number;
  readonly kind: string;
  readonly cause: readonly number[];
  readonly text: string;
  /** seq of the event that opened what this one belongs to. */
  readonly ref: number | null;
  /** false: something failed; true: something succeeded; null: neither. */
  readonly ok: boolean | null;
  readonly data: Readonly<Record<string, unknown>>;
}

export interface Header {
  readonly events: number;
  readonly agents: number;
  readonly running: number;
  readonly pending: number;
  readonly model_calls: number;
  readonly tool_runs: number;
  readonly errors: number;
  readonly input_tokens: number;
  readonly cached_tokens: number;
  readonly output_tokens: number;
  readonly usd: number;
  /** true: part of `usd` is an estimate. */
  readonly estimated: boolean;
  readonly goal: { readonly seq: number; readonly text: string; readonly state: string; readonly why: string } | null;
}

export interface TimelineSnapshot {
  readonly events?: readonly EventSummary[];
  readonly header?: Header;
}

export interface EventsMessage {
  readonly type: "events";
  readonly since: number;
  readonly upto: number;
  readonly events: readonly EventSummary[];
  readonly header: Header;
}

export interface DetailMessage {
  readonly type: "detail";
  readonly seq: number;
  readonly event: Readonly<Record<string, unknown>> | null;
  readonly diff?: string;
}

export type TimelineMessage = EventsMessage | DetailMessage;

export type ApprovalState = "pending" | "granted" | "denied" | "expired";

export interface Approval {
  readonly approval: number;
  readonly state: ApprovalState;
  readonly agent: string;
  readonly ts: string;
  readonly action: string;
  /** Exactly what will run or be written. */
  readonly what: string;
  readonly cwd: string;
  readonly diff: string;
  readonly digest: string;
  readonly rule: string;
  readonly why: string;
  readonly by: string;
  readonly scope: string;
  /** Money spent so far, or null where nobody knows. */
  readonly usd: number | null;
  /** Everything else that was shown and is covered by the digest. */
  readonly more: Readonly<Record<string, unknown>>;
}

export interface ApprovalsSnapshot {
  readonly pending?: readonly Approval[];
}

export interface ApprovalsMessage {
  readonly type: "approvals";
  readonly pending: readonly Approval[];
}

export type Severity = "blocking" | "major" | "minor" | "note";

/** One finding of a review; made by `finding_shown` in musecode_jupyter/session/critiques.py. */
export interface Finding {
  /** seq of the event that last changed it. */
  readonly seq: number;
  readonly number: number;
  readonly state: "open" | "answered" | "fixed" | "withdrawn";
  readonly severity: Severity;
  /** The work that it is about cannot land because of it. */
  readonly blocks: boolean;
  readonly accepted: boolean;
  /** It has no evidence, and stops nothing by itself. */
  readonly opinion: boolean;
  readonly check: string;
  readonly where: string;
  readonly place: { readonly path: string; readonly start: number; readonly end: number; readonly text: string; readonly side: "new" | "old" };
  readonly text: string;
  readonly why: string;
  readonly evidence: readonly {
    readonly form: "span" | "command" | "hunk";
    readonly path: string;
    readonly start: number;
    readonly end: number;
    readonly call: number | null;
    readonly text: string;
  }[];
  readonly suggestion: string;
  readonly passes: readonly string[];
  readonly hunk: string;
  /** The piece of work that it is about, in words. */
  readonly work: string;
  /** The merge that it was raised on. */
  readonly merge: number | null;
  readonly said: string;
  readonly by: string;
}

export interface FindingsSnapshot {
  readonly findings?: readonly Finding[];
}

export interface FindingsMessage {
  readonly type: "findings";
  readonly since: number;
  readonly upto: number;
  readonly findings: readonly Finding[];
}

/** What was said of a finding was not taken. */
export interface RefusedMessage {
  readonly type: "refused";
  readonly number: number;
  readonly problem: string;
}

/** No kernel is there any more. */
export interface GoneMessage {
  readonly type: "gone";
  readonly why: string;
}

export type CritiquesMessage = FindingsMessage | RefusedMessage | GoneMessage;

export type Trial = "fails" | "passes" | "cannot run" | "to be made" | "not run";

export interface PlanStep {
  readonly name: string;
  readonly goal: string;
  readonly reads: readonly string[];
  readonly writes: readonly string[];
  readonly after: readonly string[];
  readonly risk: { readonly level: "low" | "medium" | "high"; readonly why: string };
  readonly tokens: number;
  readonly trials: readonly { readonly command: string; readonly ended: Trial; readonly exit: number | null }[];
}

/** A version of a plan; made in musecode_jupyter/skills/plan.py. */
export interface PlanDocument {
  readonly goal: string;
  readonly summary: string;
  readonly steps: readonly PlanStep[];
  readonly denied: string;
  readonly questions: readonly string[];
  readonly evidence: readonly { readonly path: string; readonly shows: string; readonly read: boolean }[];
  readonly ground: { readonly uncommitted: readonly string[] };
}

/** A plan as `Plans.shown` in musecode_jupyter/session/plans.py says it. */
export interface Plan {
  readonly number: number;
  readonly text: string;
  readonly status: "writing" | "proposed" | "approved" | "rejected" | "cancelled" | "stopped";
  readonly standing: string;
  readonly version: number;
  readonly digest: string;
  readonly document: PlanDocument | null;
  readonly answers: Readonly<Record<string, string>>;
  readonly difference: string;
}

export interface PlanSnapshot {
  readonly plan?: Plan;
}

export type PlanMessage = { readonly type: "plan"; readonly plan: Plan } | { readonly type: "refused"; readonly problem: string };

/** One finding of an attack; made by `finding_shown` in musecode_jupyter/session/grill_text.py. */
export interface AttackFinding {
  readonly number: number;
  readonly severity: "blocking" | "major" | "minor";
  /** It is proven, grave, and not settled. */
  readonly blocks: boolean;
  /** It has no evidence that was checked, and stops nothing. */
  readonly opinion: boolean;
  readonly angles: readonly string[];
  readonly place: string;
  readonly text: string;
  readonly proof: string;
  readonly change: string;
  readonly question: string;
  readonly by: string;
  readonly state: "open" | "accepted" | "rejected" | "answered" | "resolved";
  readonly said: string;
}

/** An attack as `grill_shown` in musecode_jupyter/session/grill_text.py says it. */
export interface Attack {
  /** seq of the event that last changed it. */
  readonly seq: number;
  readonly number: number;
  readonly title: string;
  readonly status: "running" | "ended" | "stopped";
  readonly standing: string;
  /** What each angle came to, in a few words. */
  readonly angles: Readonly<Record<string, string>>;
  readonly asked: { readonly finding: number | null; readonly question: number | null; readonly text: string } | null;
  readonly findings: readonly AttackFinding[];
}

export interface AttackSnapshot {
  readonly grill?: Attack;
}

export type AttackMessage = { readonly type: "grill"; readonly grill: Attack } | { readonly type: "refused"; readonly problem: string };

export type Decision = "approve" | "approve_session" | "approve_workspace" | "deny";

/** The part of anywidget's model that the views use. */
export interface Model {
  get(name: string): unknown;
  on(name: string, callback: (...args: never[]) => void): void;
  off(name: string, callback: (...args: never[]) => void): void;
  send(content: unknown): void;
}

export interface RenderContext {
  readonly model: Model;
  readonly el: HTMLElement;
}
