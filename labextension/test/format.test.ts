import assert from "node:assert/strict";
import { test } from "node:test";
import { count, duration, money, SHAPES, tickStep } from "../src/views/format";

test("counts, money and durations stay short", () => {
  assert.deepEqual([count(9_999), count(12_345), count(123_456), count(1_234_567)], ["9,999", "12.3k", "123k", "1.23M"]);
  assert.deepEqual([money(0), money(0.0021), money(1.5, true)], ["$0.00", "$0.0021", "~$1.50"]);
  assert.deepEqual([duration(250), duration(2_400), duration(75_000), duration(3_660_000)], ["250 ms", "2.4 s", "1 min 15 s", "1 h 01 min"]);
});

test("ticks keep their distance at every scale", () => {
  for (let ms = 5; ms < 1e9; ms *= 3) {
    const step = tickStep(ms, 800, 80);
    assert.ok((step / ms) * 800 >= 79.999, `${ms} ms`);
  }
});

test("no two groups share a shape, since colour must not be the only sign", () => {
  assert.equal(new Set(Object.values(SHAPES)).size, Object.keys(SHAPES).length);
});
