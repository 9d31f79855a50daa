import type { HostRecord, Item, Vxlan } from "./items";

/** One change of a host. */
export interface Step {
  verb: "add" | "change" | "remove";
  item: Item;
  /** How many copies are present, for kinds that can have more than one. */
  copies?: number;
  /** The position of a jump among the rules of other programs; the first unless set. */
  position?: number;
  /** The tunnel's peer before this change, if it had another address. */
  formerPeer?: Vxlan;
  /** The zones of firewalld that it changes. */
  zones?: ZoneLocation[];
  /** The same address with other prefix lengths, which is removed after this one is added. */
  otherPrefixes?: string[];
  /** Devices that were ports of this bridge before it was deleted, and become ports again. */
  ports?: string[];
  /** The setting keeps its value, because other programs need it. */
  keepsValue?: boolean;
  /** The value before our first change, if it is known although the saved value is lost. */
  formerValue?: string;
}

/** The desired state of a host for one owner. */
export interface DesiredState {
  record: Omit<HostRecord, "items">;
  /** Empty: everything of this owner is removed. */
  items: Item[];
  /** Take over devices and routes that are as desired and in no record: see diff/adopt.ts. */
  adopt?: boolean;
  /** Restore it when the host boots. */
  persist?: boolean;
  /** For a removal: the items that the owner would have here. They are removed without a record, too, if they are provably ours. */
  plannedItems?: Item[];
  /** uids of earlier leases of the same resource, or of leases that are gone: this owner takes over the items of their records. */
  staleUids?: string[];
}

/** A zone in one of firewalld's configurations; `offline`: the permanent one, while firewalld is stopped. */
export interface ZoneLocation {
  configuration: "runtime" | "permanent" | "offline";
  zone: string;
}
