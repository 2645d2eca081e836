"""`orrery trace`: a service, or one step of it, as a trace that Perfetto and chrome://tracing open."""
