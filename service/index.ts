/** The pool over HTTP: `overlayctl serve`. */

export { type ServeContext, serve } from "./serve";
export { readServiceSettings, type ServiceSettings } from "./settings";
