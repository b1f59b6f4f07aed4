// Builds the view bundles into musecode_jupyter/static and the JupyterLab extension into its folder lab (or, with
// --test, the unit tests into node_modules).
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const tests = process.argv.includes("--test");
const watchless = { bundle: true, format: "esm", charset: "utf8", logLevel: "warning", absWorkingDir: here };

if (tests) {
  await build({
    ...watchless,
    entryPoints: ["test/lanes.test.ts", "test/format.test.ts", "test/hunk.test.ts"],
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
      critiques: "src/views/critiques.ts",
      plan: "src/views/plan.ts",
      grill: "src/views/grill.ts",
    },
    outdir: join(here, "..", "musecode_jupyter", "static"),
    platform: "browser",
    target: "es2022",
    minify: true,
    legalComments: "none",
  });
  // A script that stands in the page itself, and so is none with exports.
  await build({
    ...watchless,
    format: "iife",
    entryPoints: { page: "src/views/page.ts" },
    outdir: join(here, "..", "musecode_jupyter", "static"),
    platform: "browser",
    target: "es2022",
    minify: true,
    legalComments: "none",
  });
  await buildLab(join(here, "..", "musecode_jupyter", "static"));
}

// What JupyterLab finds in share/jupyter/labextensions/musecode-jupyter: the container script, named after its
// content so that no browser keeps an old one, and the package.json that names it.
async function buildLab(statics) {
  const lab = join(statics, "lab");
  const { name, version, license, description } = JSON.parse(await readFile(join(here, "package.json"), "utf8"));
  const sheets = [join(statics, "approvals.css"), join(statics, "critiques.css"), join(here, "src", "lab", "panel.css")];
  const styles = await Promise.all(sheets.map((sheet) => readFile(sheet, "utf8")));
  const built = await build({
    ...watchless,
    format: "iife",
    entryPoints: ["src/lab/remote.ts"],
    outfile: join(lab, "static", "remoteEntry.js"),
    write: false,
    platform: "browser",
    target: "es2022",
    minify: true,
    legalComments: "none",
    loader: { ".css": "empty" },
    define: { PANEL_CSS: JSON.stringify(styles.join("\n")) },
  });
  const script = built.outputFiles[0].contents;
  const load = `static/remoteEntry.${createHash("sha256").update(script).digest("hex").slice(0, 16)}.js`;
  await rm(lab, { recursive: true, force: true });
  await mkdir(join(lab, "static"), { recursive: true });
  await writeFile(join(lab, load), script);
  const manifest = { name, version, description, license, jupyterlab: { extension: true, _build: { load, extension: "./extension" } } };
  await writeFile(join(lab, "package.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  const install = { packageManager: "python", packageName: "musecode-jupyter", uninstallInstructions: "pip uninstall musecode-jupyter" };
  await writeFile(join(lab, "install.json"), `${JSON.stringify(install, null, 2)}\n`);
}
