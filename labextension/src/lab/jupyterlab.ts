// The little of JupyterLab's interfaces that the extension uses, written down here so that its packages, which are
// hundreds of megabytes with their tools, need not be installed to build; JupyterLab brings them at run time.

export interface Signal<Sender, Argument> {
  connect(slot: (sender: Sender, argument: Argument) => void): boolean;
  disconnect(slot: (sender: Sender, argument: Argument) => void): boolean;
}

export interface KernelMessage {
  readonly header: { readonly msg_id: string; readonly msg_type: string };
  readonly content: Record<string, unknown>;
}

export interface Kernel {
  readonly id: string;
  readonly clientId: string;
  readonly username: string;
  readonly isDisposed: boolean;
  sendControlMessage(message: unknown, expectReply: boolean, disposeOnDone: boolean): { readonly done: Promise<KernelMessage>; dispose(): void };
}

export interface SessionContext {
  readonly session: { readonly kernel: Kernel | null } | null;
  readonly iopubMessage: Signal<SessionContext, KernelMessage>;
  readonly kernelChanged: Signal<SessionContext, unknown>;
  readonly statusChanged: Signal<SessionContext, string>;
}

export interface SharedCell {
  readonly execution_count?: number | null;
  getSource(): string;
  setSource(source: string): void;
}

export interface CellWidget {
  readonly model: { readonly id: string; readonly sharedModel: SharedCell };
}

export interface NotebookPanel {
  readonly sessionContext: SessionContext;
  readonly context: { readonly path: string; readonly pathChanged: Signal<unknown, string> };
  readonly content: {
    readonly widgets: readonly CellWidget[];
    readonly model: { readonly sharedModel: { insertCell(index: number, cell: unknown): unknown } } | null;
  };
  readonly disposed: Signal<NotebookPanel, void>;
}

export interface NotebookTracker {
  readonly currentWidget: NotebookPanel | null;
  readonly widgetAdded: Signal<NotebookTracker, NotebookPanel>;
  forEach(each: (panel: NotebookPanel) => void): void;
}

export interface LuminoWidget {
  id: string;
  readonly node: HTMLElement;
  readonly title: { label: string; caption: string };
  addClass(name: string): void;
}

export interface Application {
  readonly commands: {
    addCommand(id: string, options: { label: string; caption?: string; execute: () => unknown }): unknown;
  };
  readonly shell: {
    add(widget: LuminoWidget, area: string, options?: { rank: number }): void;
    activateById(id: string): void;
  };
}

export interface Palette {
  addItem(item: { command: string; category: string }): unknown;
}

export interface StatusBar {
  registerStatusItem(id: string, item: { item: LuminoWidget; align: "left" | "right"; rank: number }): unknown;
}

/** What JupyterLab shares with its extensions, by package. */
export interface Shared {
  readonly tokens: { readonly tracker: unknown; readonly palette: unknown; readonly statusBar: unknown };
  readonly Widget: new (options?: { node: HTMLElement }) => LuminoWidget;
}
