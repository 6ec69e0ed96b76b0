"""HTTP without models: routes, bodies, server-sent events, errors and admission."""
