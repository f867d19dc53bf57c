"""What a schema cannot say, told to schemathesis.

How many tokens a text has, and whether an answer is done by its deadline, no schema says: a request that fits its schema
may be answered so. All other refusals of such a request are findings.
"""

import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

BEYOND_SCHEMAS = {"context_length_exceeded", "deadline_exceeded", "too_many_choices"}


@schemathesis.check
def positive_data_acceptance_but_for_length(ctx, response, case):
    if response.status_code in (400, 408) and response.json()["error"]["code"] in BEYOND_SCHEMAS:
        return None
    return positive_data_acceptance(ctx, response, case)
