import assert from "node:assert/strict";
import { test } from "node:test";
import { numbered } from "../src/views/hunk";

test("rows have the numbers of their sides, and the place is marked on its own", () => {
  const hunk = "@@ -3,3 +3,3 @@\n a\n-b\n+c\n d";
  const rows = numbered(hunk, { start: 4, end: 4, text: "c", side: "new" });
  assert.deepEqual(
    rows.slice(1).map((row) => [row.sort, row.before, row.after, row.marked]),
    [
      ["same", "3", "3", false],
      ["del", "4", "", false],
      ["add", "", "4", true],
      ["same", "5", "5", false],
    ],
  );
  const old = numbered(hunk, { start: 4, end: 5, text: "b\nd", side: "old" });
  assert.deepEqual(old.filter((row) => row.marked).map((row) => row.text), ["-b", " d"]);
});

test("a place without a hunk is shown as it stands", () => {
  const rows = numbered("", { start: 9, end: 10, text: "x\ny", side: "new" });
  assert.deepEqual(rows.map((row) => [row.after, row.text, row.marked]), [["9", " x", true], ["10", " y", true]]);
});
