"""HTTP without models: routes, bodies, server-sent events, errors, admission, API keys and allowed hosts."""
