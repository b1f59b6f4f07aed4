// Builds the view bundles into musecode_jupyter/static (or, with --test, the unit tests into node_modules).
import { build } from "esbuild";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const tests = process.argv.includes("--test");
const watchless = { bundle: true, format: "esm", charset: "utf8", logLevel: "warning", absWorkingDir: here };

if (tests) {
  await build({
    ...watchless,
    entryPoints: ["test/lanes.test.ts", "test/format.test.ts"],
    outdir: join(here, "node_modules", ".views-test"),
    outExtension: { ".js": ".mjs" },
    platform: "node",
    target: "node18",
  });
} else {
  await build({
    ...watchless,
    entryPoints: {
      timeline: "src/views/timeline.ts",
      approvals: "src/views/approvals.ts",
    },
    outdir: join(here, "..", "musecode_jupyter", "static"),
    platform: "browser",
    target: "es2022",
    minify: true,
    legalComments: "none",
  });
}
