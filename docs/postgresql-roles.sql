-- Roles for the store in the schema "overlay". Run once as the owner of the schema, after the store was opened for the first time by that owner,
-- which must be allowed to create roles. Grant the roles to users: GRANT overlay_reader TO grafana.

-- All: Pulumi and overlayctl. Only the owner of the schema can bring the tables to a new layout.
CREATE ROLE overlay_writer NOLOGIN;
GRANT USAGE ON SCHEMA overlay TO overlay_writer;
GRANT SELECT ON overlay.layout TO overlay_writer;
GRANT SELECT, INSERT, UPDATE, DELETE ON overlay.kv, overlay.log, overlay.secrets TO overlay_writer;
GRANT SELECT ON overlay.leases, overlay.pools, overlay.free_ranges, overlay.history TO overlay_writer;

-- Reading: dashboards, monitors, `overlayctl pool list`. Sees all tenants' pools, leases and history, and no secret. The views are for SQL;
-- the tables are what overlayctl reads, and a role for a dashboard alone does not need them.
CREATE ROLE overlay_reader NOLOGIN;
GRANT USAGE ON SCHEMA overlay TO overlay_reader;
GRANT SELECT ON overlay.leases, overlay.pools, overlay.free_ranges, overlay.history TO overlay_reader;
GRANT SELECT ON overlay.layout, overlay.kv, overlay.log TO overlay_reader;

-- One tenant, here acme/web: reads its own pools, and the leases that are its own or in these pools. A view and a role for each tenant.
CREATE VIEW overlay.tenant_acme_web WITH (security_barrier) AS
  WITH own_pools AS (
    SELECT key, value, value::jsonb #>> '{spec,name}' AS name FROM overlay.kv
    WHERE key >= 'p/' AND key < 'p0' AND value::jsonb #> '{spec,tenant}' = '{"org": "acme", "project": "web"}'
  )
  SELECT key, value FROM own_pools
  UNION ALL
  SELECT key, value FROM overlay.kv
  WHERE key >= 'l/' AND key < 'l0'
    AND (value::jsonb -> 'tenant' = '{"org": "acme", "project": "web"}' OR value::jsonb ->> 'pool' IN (SELECT name FROM own_pools));
CREATE ROLE overlay_tenant_acme_web NOLOGIN;
GRANT USAGE ON SCHEMA overlay TO overlay_tenant_acme_web;
GRANT SELECT ON overlay.tenant_acme_web TO overlay_tenant_acme_web;
