import type { OverlayError } from "../../errors";
import type { ItemDifference } from "../../network/kinds/kind";
import type { Container } from "../../network/model/facts";
import type { HostRecord } from "../../network/model/items";
import type { DesiredState } from "../../network/model/steps";
import type { Host } from "../connection";

/**
 * Makes hosts look as wanted: lock, facts, is the lease still ours?, steps, one batch, read back. Compares with the
 * machine, never with memory. Work that waits for one host is done together in one conversation, so that 63 runners do
 * not mean 63 scans of the hub; one owner's error does not fail the others.
 */
export interface ApplyRequest extends DesiredState {
  /** Asked under the host's lock, before the first write; throws when the work is no longer ours to do. */
  fence(): Promise<void>;
  /** Whether the lease behind a record of our own store is gone for good, so that what it lists is nobody's. */
  isLeaseGone(uid: string): Promise<boolean>;
  /** Why there is no plan of what is to be removed. */
  planError?: OverlayError;
}

/** Work that is only checked: whether it would be refused. */
export type CheckRequest = Omit<ApplyRequest, "fence">;

/** What a host was found to have. */
export interface InspectResult {
  differences: ItemDifference[];
  /** Objects of other programs that are in its way, as text; they stay, whatever is applied. */
  foreign: string[];
  /** On the owner's Docker network. */
  containers: Container[];
  /** Whether a tunnel's peer is to get another address. Its own end must change later, or its packets are dropped meanwhile. */
  peerMoves: boolean;
}

export interface ConversationReport {
  host: string;
  works: number;
  inspections: number;
  steps: number;
  milliseconds: number;
}

/** How it goes about its work. */
export interface ReconcileOptions {
  warn(text: string): void;
  /** Called for each host that cannot restore its part after a boot. */
  warnWithoutSystemd(host: Host): void;
  /** Called before the first write for these owners. */
  begin(host: Host, desiredStates: DesiredState[]): void;
  /** Seconds after which a host undoes a change that could lock us out, unless a new connection confirms it. */
  revertAfter: number;
}

/** Decides which of the work that waits for a host can be done, before anything is written. */

export interface Job {
  host: Host;
  request: DesiredState | CheckRequest | ApplyRequest;
  done(seen: InspectResult): void;
  fail(error: unknown): void;
}

/** An owner's record on a host through one piece of work: written before the first change, cut or removed after the last. */
export interface RecordChange {
  desired: ApplyRequest;
  /** The record to write before the first change; none where it stands already. */
  written: HostRecord[];
  /** A file in its place that is no record, to be moved aside first. */
  invalidFiles: string[];
}
