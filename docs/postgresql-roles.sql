-- Roles for the store in the schema "overlay". Run once as the owner of the schema, after the store was opened for the first time by that owner,
-- which must be allowed to create roles. Grant the roles to users: GRANT overlay_reader TO grafana.

-- All: Pulumi and overlayctl. Only the owner of the schema can bring the tables to a new layout.
CREATE ROLE overlay_writer NOLOGIN;
GRANT USAGE ON SCHEMA overlay TO overlay_writer;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA overlay TO overlay_writer;

-- Reading: dashboards, monitors, `overlayctl pool list`. Sees all tenants' pools, leases and history, and no secret.
CREATE ROLE overlay_reader NOLOGIN;
GRANT USAGE ON SCHEMA overlay TO overlay_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA overlay TO overlay_reader;
REVOKE ALL ON overlay.secret FROM overlay_reader;

-- One tenant, here acme/web: reads its own pools, and the leases that are its own or in these pools. Two views and a role for each tenant.
CREATE VIEW overlay.tenant_acme_web_pools WITH (security_barrier) AS
  SELECT name, spec, reserved, used, resting, held FROM overlay.pool
  WHERE spec::jsonb -> 'tenant' = '{"org": "acme", "project": "web"}';
CREATE VIEW overlay.tenant_acme_web_leases WITH (security_barrier) AS
  SELECT uid, pool, owner, type, state, ranges, ports, names, labels, used_by, tenant, created_at, updated_at, last_seen, expires_at, ended_at, end_reason
  FROM overlay.lease
  WHERE tenant::jsonb = '{"org": "acme", "project": "web"}' OR pool IN (SELECT name FROM overlay.tenant_acme_web_pools);
CREATE ROLE overlay_tenant_acme_web NOLOGIN;
GRANT USAGE ON SCHEMA overlay TO overlay_tenant_acme_web;
GRANT SELECT ON overlay.tenant_acme_web_pools, overlay.tenant_acme_web_leases TO overlay_tenant_acme_web;
