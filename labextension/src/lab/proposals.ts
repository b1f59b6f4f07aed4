// Carries out a change of a cell that the user has agreed to; a cell that is gone or was changed is left alone.
import type { Done } from "./control";
import type { NotebookPanel } from "./jupyterlab";

export interface Proposal {
  readonly proposal: number;
  readonly cell: string | null;
  readonly after: string | null;
  readonly before: string;
  readonly source: string;
}

export function apply(panel: NotebookPanel, proposal: Proposal): Done {
  const cells = panel.content.widgets;
  if (proposal.cell !== null) {
    const cell = cells.find((each) => each.model.id === proposal.cell);
    if (!cell) return { ok: false, problem: `the cell ${proposal.cell} is gone` };
    const shared = cell.model.sharedModel;
    if (shared.getSource() === proposal.source) return { ok: true };
    if (shared.getSource() !== proposal.before) return { ok: false, problem: "the cell was changed since it ran" };
    shared.setSource(proposal.source);
    return { ok: true };
  }
  let index = cells.length;
  if (proposal.after !== null) {
    const place = cells.findIndex((each) => each.model.id === proposal.after);
    if (place < 0) return { ok: false, problem: `the cell ${proposal.after} is gone` };
    index = place + 1;
  }
  const model = panel.content.model;
  if (!model) return { ok: false, problem: "the notebook is closed" };
  model.sharedModel.insertCell(index, { cell_type: "code", source: proposal.source, metadata: {} });
  return { ok: true };
}
