import { openStore } from "../../pool";
import { reopen } from "../../pool/transfer";
import { command, guarded } from "../command";

export const reopenCommand = () =>
  command("reopen", "Open a store again whose move was killed before it was done.").action(
    guarded(async (settings, out) => {
      const store = await openStore(settings.store, settings);
      await reopen(store).finally(() => store.close());
      out.note("The store is open. What the move has copied is out of date; the next move replaces it.");
    }),
  );
