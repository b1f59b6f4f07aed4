import assert from "node:assert/strict";
import { test } from "node:test";
import type { EventSummary } from "../src/protocol";
import { firstVisible, lowerBound, TimelineModel } from "../src/views/lanes";

let seq = 0;
const START = Date.parse("2026-03-02T09:30:00Z");

function event(kind: string, second: number, extra: Partial<EventSummary> = {}): EventSummary {
  return {
    seq: ++seq,
    ts: new Date(START + second * 1000).toISOString(),
    agent: "lead",
    turn: 0,
    kind,
    cause: [],
    text: "",
    ref: null,
    ok: null,
    data: {},
    ...extra,
  };
}

function fresh(): TimelineModel {
  seq = 0;
  return new TimelineModel();
}

test("a model call becomes a span that is closed by its answer", () => {
  const model = fresh();
  model.add(event("model.requested", 0));
  assert.equal(model.running, 1);
  model.add(event("model.completed", 4, { ref: 1, ok: true, data: { ttft_s: 1 } }));
  const span = model.lanes[0]!.model[0]!;
  assert.equal(model.running, 0);
  assert.deepEqual([span.start, span.acted, span.end, span.state], [START, START + 1000, START + 4000, "ok"]);
});

test("parallel tool calls lie on tracks of their own and a free track is used again", () => {
  const model = fresh();
  model.add(event("tool.requested", 0));
  model.add(event("tool.requested", 1));
  model.add(event("tool.finished", 2, { ref: 1, ok: true }));
  model.add(event("tool.requested", 3));
  assert.deepEqual(model.lanes[0]!.tools.map((track) => track.map((span) => span.seq)), [[1, 4], [2]]);
});

test("a failed run is a failed span and a point of its own", () => {
  const model = fresh();
  model.add(event("tool.requested", 0));
  model.add(event("tool.started", 1, { ref: 1, data: { effect: "process" } }));
  model.add(event("tool.finished", 2, { ref: 1, ok: false }));
  const lane = model.lanes[0]!;
  assert.deepEqual([lane.tools[0]![0]!.state, lane.tools[0]![0]!.effect], ["failed", "process"]);
  assert.deepEqual(lane.points.get("error")?.seqs, [3]);
});

test("an event that was seen already changes nothing", () => {
  const model = fresh();
  const first = event("user.message", 0);
  assert.equal(model.add(first), true);
  assert.equal(model.add(first), false);
  assert.equal(model.events.length, 1);
});

test("times never fall although the clock was set back", () => {
  const model = fresh();
  model.add(event("user.message", 10));
  model.add(event("user.message", 5));
  assert.deepEqual(model.times, [START + 10_000, START + 10_000]);
});

test("lanes: user first, then the harness, then agents in the order of their appearance", () => {
  const model = fresh();
  model.add(event("agent.created", 0, { agent: "worker" }));
  model.add(event("agent.created", 0, { agent: "lead" }));
  model.add(event("goal.set", 0, { agent: "" }));
  model.add(event("approval.granted", 0, { agent: "lead" }));
  assert.deepEqual(model.lanes.map((lane) => lane.name), ["user", "harness", "worker", "lead"]);
});

test("causes come nearest first, each once, and a missing one is skipped", () => {
  const model = fresh();
  model.add(event("goal.set", 0));
  model.add(event("model.requested", 1, { cause: [1] }));
  model.add(event("model.completed", 2, { cause: [2, 1, 99] }));
  assert.deepEqual(model.causes(3).map((cause) => cause.seq), [2, 1]);
  assert.deepEqual(model.ledTo(1), [2, 3]);
});

test("what a closed session left open is cut", () => {
  const model = fresh();
  model.add(event("model.requested", 0));
  model.add(event("session.closed", 3));
  assert.deepEqual([model.running, model.lanes.find((lane) => lane.name === "lead")!.model[0]!.state], [0, "cut"]);
});

test("the first visible span is one that reaches into the window", () => {
  const model = fresh();
  for (let i = 0; i < 1000; i++) {
    model.add(event("model.requested", 2 * i));
    model.add(event("model.completed", 2 * i + 1, { ref: seq, ok: true }));
  }
  const track = model.lanes[0]!.model;
  assert.equal(firstVisible(track, START + 500), 0);
  assert.equal(firstVisible(track, START + 1500), 1);
  assert.equal(firstVisible(track, START + 999_500), 500);
  assert.equal(firstVisible(track, START + 9_999_999), 1000);
  assert.equal(lowerBound([1, 3, 3, 5], 3), 1);
});
