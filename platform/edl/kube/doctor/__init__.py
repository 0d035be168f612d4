"""Whether a cluster is fit for jobs: what is looked at, what is said about it, and who can mend it."""
