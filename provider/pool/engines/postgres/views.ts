/**
 * Views for people and dashboards, over the rows of `keys.ts` and `records.ts`. They have no secret, and neither tokens nor what tokens are
 * made of: a user that may read them needs no right on the tables. `sqlite/views.ts` has the same columns.
 */
export const postgresViews = (schema: string): string => `
  CREATE OR REPLACE VIEW ${schema}.leases AS
  SELECT lease.pool, ${bounds}, state, owner, type, ${tenant("tenant")},
    "usedBy" AS used_by, labels, "sharingKey" AS sharing_key, ports, "childPool" AS child_pool, by AS created_by,
    ${time('"createdAt"')} AS created_at, ${time('"updatedAt"')} AS updated_at, ${time('"lastSeen"')} AS last_seen,
    ${time('"expiresAt"')} AS expires_at, uid
  FROM ${schema}.kv,
    jsonb_to_record(kv.value::jsonb) AS lease (pool text, extents jsonb, state text, owner text, type text, tenant jsonb, "usedBy" text,
      labels jsonb, "sharingKey" text, ports jsonb, "childPool" text, by text, "createdAt" float8, "updatedAt" float8, "lastSeen" float8,
      "expiresAt" float8, uid text),
    jsonb_array_elements_text(extents) AS extent, ${ends("extent")}
  WHERE ${under("l")} AND state <> 'ended' AND ("expiresAt" IS NULL OR ${time('"expiresAt"')} >= now());

  CREATE OR REPLACE VIEW ${schema}.pools AS
  SELECT pool.name, pool.kind,
    (SELECT string_agg(coalesce(${hosts}, ${integer("first")}::text || '-' || ${integer("last")}::text), ', ')
      FROM jsonb_array_elements_text(extents) AS extent, ${ends("extent")}) AS ranges,
    pool.allocation, ${tenant("tenant")}, record.capacity, coalesce(held, 0) AS held, coalesce(offered, 0) AS offered,
    coalesce(reserved, 0) AS reserved, coalesce(used, 0) AS used, coalesce(quarantined, 0) AS quarantined,
    opener ->> 'pool' AS parent_pool, coalesce(closing, false) AS closing
  FROM ${schema}.kv
    CROSS JOIN jsonb_to_record(kv.value::jsonb) AS record (spec jsonb, opener jsonb, until float8, closing boolean, capacity numeric)
    CROSS JOIN jsonb_to_record(spec) AS pool (name text, kind text, extents jsonb, allocation text, tenant jsonb)
    LEFT JOIN ${schema}.kv AS counted ON counted.key = 'c' || substr(kv.key, 2)
    LEFT JOIN LATERAL jsonb_to_record(counted.value::jsonb) AS counts (held numeric, offered int, reserved int, used int, quarantined int) ON true
  WHERE ${under("p")} AND (until IS NULL OR ${time("until")} >= now());

  CREATE OR REPLACE VIEW ${schema}.free_ranges AS
  SELECT replace(replace(split_part(kv.key, '/', 2), '%2F', '/'), '%25', '%') AS pool, ${bounds}, kv.key >= 'g/' AS static_only
  FROM ${schema}.kv, ${ends("kv.value")}
  WHERE (${under("f")} OR ${under("g")});

  CREATE OR REPLACE VIEW ${schema}.history AS
  SELECT ${time("at")} AS at, what, pool, ${bounds}, owner, "usedBy" AS used_by, by AS actor, "takenBy" AS taken_by,
    "formerOwner" AS former_owner, uid
  FROM ${schema}.kv,
    jsonb_to_record(kv.value::jsonb) AS event (at float8, what text, pool text, extents jsonb, owner text, "usedBy" text, by text,
      "takenBy" text, "formerOwner" text, uid text),
    jsonb_array_elements_text(extents) AS extent, ${ends("extent")}
  WHERE ${under("h")};`;

const under = (letter: string): string => `kv.key >= '${letter}/' AND kv.key < '${letter}0'`;
const time = (milliseconds: string): string => `to_timestamp(${milliseconds} / 1000)`;
const tenant = (field: string): string => `(${field} ->> 'org') || '/' || (${field} ->> 'project') AS tenant`;

/** An extent is written as `FIRST-LAST` in hexadecimal. */
const ends = (extent: string): string =>
  `LATERAL (SELECT split_part(${extent}, '-', 1) AS first, split_part(${extent}, '-', 2) AS last) AS ends`;

/** IPv4 lies at ::ffff:a.b.c.d. An extent that ends within 32 bits is of numbers or ports. */
const IS_INTEGER = "length(last) <= 8";
const isIpv4 = (digits: string): string => `${digits} ~ '^ffff.{8}$'`;
const integer = (digits: string): string =>
  `CASE WHEN ${IS_INTEGER} THEN ('x' || lpad(${digits}, 8, '0'))::bit(32)::bigint END`;
const address = (digits: string): string => `CASE
      WHEN ${IS_INTEGER} THEN NULL
      WHEN ${isIpv4(digits)} THEN '0.0.0.0'::inet + ('x' || substr(${digits}, 5))::bit(32)::bigint
      ELSE regexp_replace(lpad(${digits}, 32, '0'), '(.{4})(?!$)', '\\1:', 'g')::inet END`;
const hosts = `host(${address("first")}) || '-' || host(${address("last")})`;
const bounds = `${address("first")} AS address, ${address("last")} AS last_address,
    ${integer("first")} AS number, ${integer("last")} AS last_number`;
