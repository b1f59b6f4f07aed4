// The kernel's control channel: answered on a thread of the kernel's own, while a cell blocks and after a reload.
// The other half, with the messages written down, is musecode_jupyter/jupyter/control.py.
import type { Approval, FindingsMessage } from "../protocol";
import type { Kernel } from "./jupyterlab";

/** How things stand, as the kernel says it by itself. */
export interface Standing {
  /** When it was so, on the kernel's clock. */
  readonly at: number;
  readonly session: string | null;
  /** How many questions wait for the user. */
  readonly pending: number;
  readonly running: boolean;
  /** The newest event that raised or changed a finding. */
  readonly findings: number;
  /** How many findings a goal waits for. */
  readonly settle: number;
  /** The kernel wants to hear of the page, whatever there is to ask. */
  readonly answer: boolean;
}

/** The same in full, as it is answered. */
export interface KernelState {
  readonly ok: boolean;
  readonly at: number;
  readonly session: string | null;
  readonly pending: readonly Approval[];
  readonly running: boolean;
  readonly settle: number;
  readonly findings: Omit<FindingsMessage, "type">;
}

export interface Done {
  readonly ok: boolean;
  readonly problem?: string;
}

function randomId(): string {
  // randomUUID is missing where a server is reached without TLS.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The kernel answers within 5 s, but for as long as a cell holds the GIL; one without the extension never does. */
const PATIENCE = 15_000;

/** One request and its reply; fails if the kernel is gone or does not answer, and once `givenUp` says so. */
export async function ask<Reply>(kernel: Kernel, content: Record<string, unknown>, givenUp?: AbortSignal): Promise<Reply> {
  const message = {
    header: {
      msg_id: randomId(),
      msg_type: "musecode_request",
      session: kernel.clientId,
      username: kernel.username,
      date: new Date().toISOString(),
      version: "5.3",
    },
    parent_header: {},
    metadata: {},
    content,
    channel: "control",
    buffers: [],
  };
  const future = kernel.sendControlMessage(message, true, true);
  const timer = setTimeout(() => future.dispose(), PATIENCE);
  givenUp?.addEventListener("abort", () => future.dispose());
  try {
    const reply = await future.done;
    return reply.content as unknown as Reply;
  } finally {
    clearTimeout(timer);
  }
}
