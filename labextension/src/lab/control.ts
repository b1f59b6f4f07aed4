// The kernel's control channel: answered on a thread of the kernel's own, while a cell blocks and after a reload.
// The other half, with the messages written down, is musecode_jupyter/jupyter/control.py.
import type { Approval } from "../protocol";
import type { Kernel } from "./jupyterlab";

export interface KernelState {
  readonly ok: boolean;
  readonly session: string | null;
  readonly pending: readonly Approval[];
  readonly running: boolean;
}

export interface Done {
  readonly ok: boolean;
  readonly problem?: string;
}

function randomId(): string {
  // randomUUID is missing where a server is reached without TLS.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** One request and its reply. */
export async function ask<Reply>(kernel: Kernel, content: Record<string, unknown>): Promise<Reply> {
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
  const reply = await kernel.sendControlMessage(message, true, true).done;
  return reply.content as unknown as Reply;
}
