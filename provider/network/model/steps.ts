import type { HostRecord, Item, Vxlan } from "./items";

/** One change of a host. */
export interface Step {
  verb: "add" | "change" | "remove";
  item: Item;
  /** How many of it stand now, where that can be more than one. */
  copies?: number;
  /** Where a jump goes among the rules of others; the first unless set. */
  position?: number;
  /** The tunnel's peer before this change, where it had another address. */
  formerPeer?: Vxlan;
  /** The zones of firewalld that it is about. */
  zones?: ZoneLocation[];
  /** The same address with other prefixes, which goes when this has come. */
  otherPrefixes?: string[];
  /** Devices that were ports of this bridge before it was deleted, and are plugged in again. */
  ports?: string[];
  /** It is no longer ours, but others need it as it is. */
  keepsValue?: boolean;
  /** The setting before our first change, where the host tells it although the kept value is lost. */
  formerValue?: string;
}

/** What one owner wants of a host. */
export interface DesiredState {
  record: Omit<HostRecord, "items">;
  /** Empty: nothing of this owner is to be left. */
  items: Item[];
  /** Take over devices and routes that stand as wanted but are in nobody's record: see adopt.ts. */
  adopt?: boolean;
  /** Bring it back after a boot of the machine. */
  persist?: boolean;
  /** When nothing is to be left: what the plan says of this host. It goes, too, where no record lists it, if it is provably ours. */
  plannedItems?: Item[];
  /** uids of earlier lives, whose leases are gone: what their records list is ours now. */
  staleUids?: string[];
}

/** A zone in one of firewalld's configurations; `offline`: the permanent one, while firewalld is stopped. */
export interface ZoneLocation {
  configuration: "runtime" | "permanent" | "offline";
  zone: string;
}
