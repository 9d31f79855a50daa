/**
 * Views for people and dashboards, over the rows of `keys.ts` and `records.ts`, with the columns of `postgres/views.ts`. Nothing in them is newer
 * than SQLite 3.9: an older program that finds a view which it cannot parse opens no table of the file. Addresses are text as RFC 5952 writes it, times are `YYYY-MM-DD HH:MM:SS` in UTC, labels and ports are JSON.
 */
export const sqliteViews = (): string => `
  CREATE VIEW leases AS
  SELECT ${field("pool")} AS pool, ${bounds()},
    ${field("state")} AS state,
    ${field("owner")} AS owner, ${field("type")} AS type, ${tenant("tenant")}, ${field("usedBy")} AS used_by, ${field("labels")} AS labels,
    ${field("sharingKey")} AS sharing_key, ${field("ports")} AS ports, ${field("childPool")} AS child_pool, ${field("by")} AS created_by,
    ${time("createdAt")} AS created_at, ${time("updatedAt")} AS updated_at, ${time("lastSeen")} AS last_seen,
    ${time("expiresAt")} AS expires_at, ${field("uid")} AS uid
  FROM (SELECT kv.value, ${ends("extent.value")} FROM kv, json_each(kv.value, '$.extents') AS extent WHERE ${under("l")})
  WHERE ${field("state")} <> 'ended' AND ${isNotOver("expiresAt")};

  CREATE VIEW pools AS
  SELECT ${field("spec.name")} AS name, ${field("spec.kind")} AS kind,
    (SELECT group_concat(coalesce(${address("first")} || '-' || ${address("last")}, ${integer("first")} || '-' || ${integer("last")}), ', ')
      FROM (SELECT ${ends("extent.value")} FROM json_each(pool.value, '$.spec.extents') AS extent)) AS ranges,
    ${field("spec.allocation")} AS allocation, ${tenant("spec.tenant")}, CAST(${field("capacity")} AS NUMERIC) AS capacity,
    CAST(coalesce(json_extract(counts, '$.held'), 0) AS NUMERIC) AS held, coalesce(json_extract(counts, '$.offered'), 0) AS offered,
    coalesce(json_extract(counts, '$.reserved'), 0) AS reserved, coalesce(json_extract(counts, '$.used'), 0) AS used, coalesce(json_extract(counts, '$.quarantined'), 0) AS quarantined,
    ${field("opener.pool")} AS parent_pool, coalesce(${field("closing")}, 0) AS closing
  FROM (SELECT kv.value, (SELECT counted.value FROM kv AS counted WHERE counted.key = 'c' || substr(kv.key, 2)) AS counts
    FROM kv WHERE ${under("p")}) AS pool
  WHERE ${isNotOver("until")};

  CREATE VIEW free_ranges AS
  SELECT replace(replace(substr(path, 1, instr(path, '/') - 1), '%2F', '/'), '%25', '%') AS pool, ${bounds()}, static_only
  FROM (SELECT substr(key, 3) AS path, key >= 'g/' AS static_only, ${ends("value")} FROM kv WHERE (${under("f")} OR ${under("g")}));

  CREATE VIEW history AS
  SELECT ${time("at")} AS at, ${field("what")} AS what, ${field("pool")} AS pool, ${bounds()}, ${field("owner")} AS owner,
    ${field("usedBy")} AS used_by, ${field("by")} AS actor, ${field("takenBy")} AS taken_by, ${field("formerOwner")} AS former_owner,
    ${field("uid")} AS uid
  FROM (SELECT kv.value, ${ends("extent.value")} FROM kv, json_each(kv.value, '$.extents') AS extent WHERE ${under("h")});`;

const field = (path: string): string => `json_extract(value, '$.${path}')`;
const under = (letter: string): string => `kv.key >= '${letter}/' AND kv.key < '${letter}0'`;
const time = (path: string): string => `datetime(${field(path)} / 1000.0, 'unixepoch')`;
const isNotOver = (path: string): string =>
  `(${field(path)} IS NULL OR ${field(path)} / 1000.0 >= (julianday('now') - 2440587.5) * 86400)`;
const tenant = (path: string): string => `${field(`${path}.org`)} || '/' || ${field(`${path}.project`)} AS tenant`;

/** An extent is written as `FIRST-LAST` in hexadecimal. */
const ends = (extent: string): string =>
  `substr(${extent}, 1, instr(${extent}, '-') - 1) AS first, substr(${extent}, instr(${extent}, '-') + 1) AS last`;

/** The value of a hexadecimal digit: 0 where it is none of these. */
const digit = (text: string, at: number): string => `instr('123456789abcdef', substr(${text}, ${at}, 1))`;
const byte = (text: string, at: number): string => `(${digit(text, at)} * 16 + ${digit(text, at + 1)})`;

/** An extent that ends within 32 bits is of numbers or ports. IPv4 lies at ::ffff:a.b.c.d. */
const IS_INTEGER = "length(last) <= 8";
const integer = (digits: string): string => {
  const padded = `substr('0000000' || ${digits}, -8)`;
  const bytes = [1, 3, 5, 7].map((at) => byte(padded, at));
  return `CASE WHEN ${IS_INTEGER} THEN ((${bytes[0]} * 256 + ${bytes[1]}) * 256 + ${bytes[2]}) * 256 + ${bytes[3]} END`;
};
const address = (digits: string): string => `CASE
      WHEN ${IS_INTEGER} THEN NULL
      WHEN ${digits} GLOB 'ffff????????' THEN ${[5, 7, 9, 11].map((at) => byte(digits, at)).join(" || '.' || ")}
      ELSE ${ipv6(digits)} END`;
const bounds = (): string => `${address("first")} AS address, ${address("last")} AS last_address,
    ${integer("first")} AS number, ${integer("last")} AS last_number`;

/** Eight groups without leading zeros; the first of the longest runs of zeros is left out. */
function ipv6(digits: string): string {
  const padded = `substr('${"0".repeat(31)}' || ${digits}, -32)`;
  const groups = [1, 5, 9, 13, 17, 21, 25, 29].map(
    (at) => `ltrim(substr(${padded}, ${at}, 3), '0') || substr(${padded}, ${at + 3}, 1)`,
  );
  const runs = [8, 7, 6, 5, 4, 3, 2].map((length) => `:${"0:".repeat(length)}`);
  const cases = runs.map(
    (run) =>
      `WHEN instr(text, '${run}') THEN ltrim(substr(text, 1, instr(text, '${run}') - 1), ':') || '::' || rtrim(substr(text, instr(text, '${run}') + ${run.length}), ':')`,
  );
  return `(SELECT CASE ${cases.join(" ")} ELSE trim(text, ':') END FROM (SELECT ':' || ${groups.join(" || ':' || ")} || ':' AS text))`;
}
