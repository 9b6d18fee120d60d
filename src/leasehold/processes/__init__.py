"""Who lives, who dies, who keeps the leases. No job logic: what is done with a job is the runtime's affair."""
