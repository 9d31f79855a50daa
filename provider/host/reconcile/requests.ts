import type { OverlayError } from "../../errors";
import type { Container } from "../../network/model/facts";
import type { DesiredState, HostRecord, ItemDifference, Link } from "../../network/model/items";
import type { OwnerKey } from "../../network/model/record";
import type { Host, Report } from "../connection";

/** Asks for changes until the host has the desired state. */
export interface ApplyRequest extends DesiredState {
  /** Called under the host's lock, before the first write; throws if the lease was given to another owner. */
  fence(): Promise<void>;
  /** Whether the lease behind a record of our own store is gone for good, so that its items have no owner. */
  isLeaseGone(uid: string): Promise<boolean>;
  /** The owners that have items on this host, as far as the pool knows. */
  ownersHere(): Promise<OwnerKey[]>;
  /** Why there is no plan of what is to be removed. */
  planError?: OverlayError;
  report?: Report;
  /** Called under the host's lock when nothing there refuses the change, before the first write. */
  accepted?(peerMoves: boolean): void;
}

/** Asks how the host differs, or whether an apply would be refused. */
export type CheckRequest = Omit<ApplyRequest, "fence" | "accepted">;

/** What a host was found to have. */
export interface InspectResult {
  differences: ItemDifference[];
  /** Objects of other programs that conflict with this owner's, as text. No apply removes them. */
  foreign: string[];
  /** Addresses of other runners that this host, a hub, has tunnels to. */
  neighbours: string[];
  /** On the owner's Docker network. */
  containers: Container[];
  /** The tunnel devices in the owner's record, which may have several while its tunnel changes. */
  tunnels: Link[];
  /** Whether a tunnel's peer is to get another address. The peer's own end must change later, or its packets are dropped meanwhile. */
  peerMoves: boolean;
}

export interface ConversationReport {
  host: string;
  works: number;
  inspections: number;
  steps: number;
  milliseconds: number;
}

export interface ReconcileOptions {
  warn(text: string): void;
  /** Called for each host that cannot restore its part after a boot. */
  warnWithoutSystemd(host: Host): void;
  /** Called before the first write for these owners. */
  begin(host: Host, states: DesiredState[]): void;
  /** Seconds after which a host reverts a change that could cut SSH, unless a new connection confirms it. */
  revertAfter: number;
}

export type ApplyJob = { action: "apply"; request: ApplyRequest } & Waiting;
export type CheckJob = { action: "check"; request: CheckRequest } & Waiting;
export type InspectJob = { action: "inspect"; request: CheckRequest } & Waiting;

/** A request that waits for a host, and the promise of its result. */
export type Job = ApplyJob | CheckJob | InspectJob;

interface Waiting {
  host: Host;
  done(result: InspectResult): void;
  fail(error: unknown): void;
}

/** How an owner's record changes with a request: written before the first change, cut or removed after the last. */
export interface RecordChange {
  desired: ApplyRequest;
  /** The record to write before the first change; none if it is on the host already. */
  written: HostRecord[];
  /** Files in its place that are not records. They are renamed first. */
  invalidFiles: string[];
}

/** An accepted request, with what it does to its record. */
export interface Accepted extends RecordChange {
  job: ApplyJob;
}
