// The container by which JupyterLab loads the extension: module federation's contract (init with the shared modules,
// then get a module), kept by hand, since all that we take from JupyterLab is four shared packages.
import type { Shared } from "./jupyterlab";
import { makePlugin } from "./plugin";

interface Provided {
  get(): Promise<() => unknown>;
}
type Scope = Record<string, Record<string, Provided> | undefined>;

let scope: Scope = {};

function newest(versions: Record<string, Provided>): Provided | undefined {
  const order = (version: string): number[] => version.split(/[.+-]/).map((part) => Number.parseInt(part, 10) || 0);
  const sorted = Object.keys(versions).sort((one, other) => {
    const [a, b] = [order(one), order(other)];
    for (let n = 0; n < Math.max(a.length, b.length); n++) {
      const difference = (a[n] ?? 0) - (b[n] ?? 0);
      if (difference) return difference;
    }
    return 0;
  });
  const last = sorted.at(-1);
  return last === undefined ? undefined : versions[last];
}

async function shared(name: string): Promise<Record<string, unknown>> {
  const provided = newest(scope[name] ?? {});
  if (!provided) throw new Error(`musecode-jupyter: this JupyterLab does not share ${name}`);
  return (await provided.get())() as Record<string, unknown>;
}

const container = {
  init(given: Scope): void {
    scope = given;
  },
  async get(module: string): Promise<() => unknown> {
    if (module !== "./extension") throw new Error(`musecode-jupyter has no module ${module}`);
    const [apputils, notebook, statusbar, widgets] = await Promise.all(
      ["@jupyterlab/apputils", "@jupyterlab/notebook", "@jupyterlab/statusbar", "@lumino/widgets"].map(shared),
    );
    const plugin = makePlugin({
      tokens: {
        tracker: notebook?.["INotebookTracker"],
        palette: apputils?.["ICommandPalette"],
        statusBar: statusbar?.["IStatusBar"],
      },
      Widget: widgets?.["Widget"] as Shared["Widget"],
    });
    return () => ({ __esModule: true, default: plugin });
  },
};

declare global {
  interface Window {
    _JUPYTERLAB?: Record<string, typeof container>;
  }
}
(window._JUPYTERLAB ??= {})["musecode-jupyter"] = container;
