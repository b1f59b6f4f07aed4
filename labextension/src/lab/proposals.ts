// Carries out a change of a cell that the user has agreed to; a cell that is gone or was changed is left alone.
import type { Done } from "./control";
import type { CellWidget, NotebookPanel } from "./jupyterlab";

export interface Proposal {
  readonly proposal: number;
  readonly cell: string | null;
  readonly after: string | null;
  readonly before: string;
  readonly source: string;
}

/**
 * The cell that the kernel means. One that ran before the kernel took note of ids is called In[3]: then it is the only
 * cell with that number, if its source is still the one that ran.
 */
function find(cells: readonly CellWidget[], name: string, source?: string): number {
  const known = cells.findIndex((each) => each.model.id === name);
  const number = /^In\[(\d+)\]$/.exec(name);
  if (known >= 0 || !number) return known;
  const same = cells.filter(({ model: { sharedModel } }) => sharedModel.execution_count === Number(number[1]));
  const [only] = same;
  if (!only || same.length > 1) return -1;
  if (source !== undefined && only.model.sharedModel.getSource() !== source) return -1;
  return cells.indexOf(only);
}

export function apply(panel: NotebookPanel, proposal: Proposal): Done {
  const cells = panel.content.widgets;
  if (proposal.cell !== null) {
    const cell = cells[find(cells, proposal.cell, proposal.before)];
    if (!cell) return { ok: false, problem: `the cell ${proposal.cell} is gone` };
    const shared = cell.model.sharedModel;
    if (shared.getSource() === proposal.source) return { ok: true };
    if (shared.getSource() !== proposal.before) return { ok: false, problem: "the cell was changed since it ran" };
    shared.setSource(proposal.source);
    return { ok: true };
  }
  let index = cells.length;
  if (proposal.after !== null) {
    const place = find(cells, proposal.after);
    if (place < 0) return { ok: false, problem: `the cell ${proposal.after} is gone` };
    index = place + 1;
  }
  const model = panel.content.model;
  if (!model) return { ok: false, problem: "the notebook is closed" };
  model.sharedModel.insertCell(index, { cell_type: "code", source: proposal.source, metadata: {} });
  return { ok: true };
}
