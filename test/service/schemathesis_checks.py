"""What schemathesis needs to know of this API, and a check of our own."""

import schemathesis

# What JSON Schema cannot describe: cursors are not for clients to make; ranges have no host bits; which URLs are allowed.
NOT_DESCRIBED = ("cursor", "ranges", "reserved", "staticOnly", "portRange", "url")


def is_valid(case):
    return case.meta is not None and case.meta.generation.mode.is_positive


@schemathesis.hook
def before_call(ctx, case, kwargs):
    """Inputs may be in the query or in the body, not in both: most valid requests would be refused for that alone."""
    if is_valid(case) and isinstance(case.body, dict) and case.query:
        case.query = {name: value for name, value in case.query.items() if name not in case.body}


@schemathesis.check
def described_input_is_parsed(ctx, response, case):
    """A request that is as described is not refused by the parser of the inputs."""
    if not is_valid(case) or response.status_code != 400:
        return
    problem = response.json()
    parser_refused = problem["fix"] == "See /docs."
    if parser_refused and not problem.get("property", "").startswith(NOT_DESCRIBED):
        raise AssertionError(f"The description allows an input that is refused: {problem['what']}")
