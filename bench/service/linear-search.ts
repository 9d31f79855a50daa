import { createHash, randomInt, timingSafeEqual } from "node:crypto";

interface LinearReservation {
  ip: string;
  token: string;
  expiresAt: number;
  container?: string;
}

/** A signature of KohakuRiver's length: 64 bits. */
const SIGNATURE_BYTES = 8;

/**
 * Reservations in one IPv4 subnet as KohakuRiver makes them (host/services/ip_reservation.py): each one lists all free addresses of the
 * subnet, as text, and picks one at random; a release looks at all reservations for the container. All of it is in memory only.
 */
export class LinearSearch {
  readonly #reservations = new Map<string, LinearReservation>();
  readonly #ips = new Map<string, string>();

  /** The first and the last address, as numbers. */
  constructor(
    private readonly first: number,
    private readonly last: number,
    private readonly secret: string,
  ) {}

  reserve(ttl: number, now = Date.now()): { ip: string; token: string } {
    this.#dropExpired(now);
    const free = this.#listFree();
    if (free.length === 0) throw new Error("no address is free");
    const ip = free[randomInt(free.length)]!;
    const expiresAt = now + ttl * 1000;
    const token = this.#sign(JSON.stringify({ ip, exp: expiresAt }));
    this.#reservations.set(ip, { ip, token, expiresAt });
    this.#ips.set(token, ip);
    return { ip, token };
  }

  use(token: string, container: string): string {
    const reservation = this.#reservations.get(this.#ips.get(token) ?? "");
    if (!this.#isSigned(token) || !reservation || reservation.container !== undefined)
      throw new Error("the token is not valid, or used");
    reservation.container = container;
    return reservation.ip;
  }

  release(container: string): string[] {
    const released = [...this.#reservations.values()].filter((reservation) => reservation.container === container);
    for (const reservation of released) this.#drop(reservation);
    return released.map(({ ip }) => ip);
  }

  #listFree(): string[] {
    const free: string[] = [];
    for (let value = this.first; value <= this.last; value++) {
      const ip = formatIpv4(value);
      if (!this.#reservations.has(ip)) free.push(ip);
    }
    return free;
  }

  #dropExpired(now: number): void {
    for (const reservation of this.#reservations.values())
      if (reservation.container === undefined && now > reservation.expiresAt) this.#drop(reservation);
  }

  #drop({ ip, token }: LinearReservation): void {
    this.#reservations.delete(ip);
    this.#ips.delete(token);
  }

  #sign(payload: string): string {
    return Buffer.concat([this.#signature(payload), Buffer.from(payload)]).toString("base64url");
  }

  #isSigned(token: string): boolean {
    const bytes = Buffer.from(token, "base64url");
    const payload = bytes.subarray(SIGNATURE_BYTES).toString();
    return (
      bytes.length > SIGNATURE_BYTES && timingSafeEqual(bytes.subarray(0, SIGNATURE_BYTES), this.#signature(payload))
    );
  }

  #signature(payload: string): Buffer {
    return createHash("sha256")
      .update(payload + this.secret)
      .digest()
      .subarray(0, SIGNATURE_BYTES);
  }
}

const formatIpv4 = (value: number): string =>
  `${value >>> 24}.${(value >>> 16) & 255}.${(value >>> 8) & 255}.${value & 255}`;
