import { randomUUID } from "node:crypto";
import { rmSync } from "node:fs";
import { afterAll, describe } from "vitest";
import { openSqlite } from "../../../provider/ipam/store/sqlite";
import { loadSqlite } from "../../../provider/ipam/store/sqlite-file";
import { engineContract, remember } from "../engine";
import { newFolder } from "../servers/process";

const open = async (url: string, options: Parameters<typeof openSqlite>[1] = {}) =>
  remember(await openSqlite(url, options), url);

const folder = newFolder("memory");
afterAll(() => rmSync(folder, { recursive: true }));

describe("a file", () => {
  engineContract({
    newUrl: () => `${folder}/${randomUUID()}.db`,
    open,
    sql: async (path, text) => {
      const db = new (await loadSqlite()).DatabaseSync(path, { readOnly: false });
      db.exec("PRAGMA busy_timeout = 5000");
      db.exec(text(""));
      db.close();
    },
    hasConnections: true,
    guardsConflict: false,
  });
});
